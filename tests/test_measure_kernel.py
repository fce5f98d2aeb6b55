"""Linked objects: the library is the object's, the launch contract is read, calls are bound.

The object is a real one, compiled by the DSL; without a GPU its host code still says what
parameters it takes, and refuses others.
"""

import shutil
import subprocess
import sys
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import pytest

from avo_cute import sandbox
from avo_cute.errors import MachineFailed
from avo_cute.measure import kernel
from avo_cute.measure import link as link_module
from avo_cute.measure.device import DeviceFault
from avo_cute.measure.devices import Devices, Gpu
from avo_cute.measure.kernel import (
    ObjectArm,
    contract_breach,
    find_runtime,
    load_runtime,
    parameters,
)
from avo_cute.measure.link import link
from avo_cute.measure.process import Confinement, Setting
from avo_cute.measure.rig import Rig

torch = pytest.importorskip("torch")

TINY = Path(__file__).parent / "build" / "tiny_kernel.py"
VECTOR = ("tensor", (1000,), "float32")
CALL = (VECTOR, VECTOR, ("float", 2.0))


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> dict[str, Path]:
    """Objects by "ARCH-VARIANT", compiled in one child process."""
    if find_spec("cutlass") is None:
        pytest.skip("the DSL is not installed: there is nothing to compile with")
    out = tmp_path_factory.mktemp("objects")
    arch = "sm_90a"
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        arch = f"sm_{major}{minor}a"
    names = [f"{arch}:honest", f"{arch}:two-kernels"]
    command = [sys.executable, "-W", "ignore", str(TINY), str(out), *names]
    subprocess.run(command, check=True, timeout=300)
    return {name.split(":")[1]: out / f"{name.replace(':', '-')}.o" for name in names}


@pytest.fixture(scope="module")
def libraries(objects, tmp_path_factory) -> dict[str, Path]:
    load_runtime()
    return dict(link(objects, tmp_path_factory.mktemp("libraries")))


@pytest.fixture
def arm(libraries) -> ObjectArm:
    return ObjectArm("candidate", libraries["honest"], CALL)


# Linking


@pytest.fixture(params=["bwrap", "landlock", "none"])
def layer(request) -> str:
    if request.param not in ("none", *(p.name for p in sandbox.layers() if p.works)):
        pytest.skip(f"{request.param} does not work here")
    return request.param


def test_one_library_per_distinct_object(objects, tmp_path, layer):
    twin = tmp_path / "twin.o"
    shutil.copy(objects["honest"], twin)
    before = sha256(twin.read_bytes()).hexdigest()
    named = {"4k": objects["honest"], "8k": twin, "other": objects["two-kernels"]}
    made = link(named, tmp_path / "libraries", layer)
    assert made["4k"] == made["8k"] == tmp_path / "libraries" / f"{before}.so"
    assert made["other"] != made["4k"]
    assert sorted((tmp_path / "libraries").iterdir()) == sorted(set(made.values()))
    assert sha256(twin.read_bytes()).hexdigest() == before


def test_a_library_is_linked_once_and_again_if_damaged(objects, tmp_path):
    one = {"w": objects["honest"]}
    (path,) = link(one, tmp_path).values()
    first = path.stat()
    link(one, tmp_path)
    assert path.stat().st_ino == first.st_ino and path.stat().st_mtime_ns == first.st_mtime_ns
    path.write_bytes(path.read_bytes()[:5000])
    link(one, tmp_path)
    assert path.stat().st_size == first.st_size


def test_objects_are_linked_where_no_layer_works(objects, tmp_path, monkeypatch):
    """There are some only because builds without a sandbox were allowed."""
    monkeypatch.setattr(sandbox, "layers", lambda: ())
    rig = Rig(Devices([Gpu(0)], tmp_path), Setting("none"), tmp_path, Confinement("none"))
    assert Path(rig.link({"w": objects["honest"]})["w"]).is_file()


def test_linking_is_confined_where_only_cuda_is_not(objects, tmp_path, monkeypatch):
    best, used, run = sandbox.choose_layer(allow_none=True), [], link_module.run

    def noting(*given, layer, **more):
        used.append(layer)
        return run(*given, layer=layer, **more)

    monkeypatch.setattr(link_module, "run", noting)
    rig = Rig(Devices([Gpu(0)], tmp_path), Setting("none"), tmp_path, Confinement("none"))
    rig.link({"w": objects["honest"]})
    assert used == [best]


def test_what_is_no_object_is_not_linked(tmp_path):
    script = tmp_path / "script.o"
    script.write_text("INPUT(/lib/libc.so.6)\n")
    with pytest.raises(MachineFailed, match="not an object"):
        link({"w": script}, tmp_path / "libraries")
    assert not list((tmp_path / "libraries").iterdir())


def test_a_missing_runtime_names_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("AVO_CUTE_DSL_RUNTIME", str(tmp_path / "none.so"))
    with pytest.raises(MachineFailed, match="AVO_CUTE_DSL_RUNTIME"):
        find_runtime()
    monkeypatch.delenv("AVO_CUTE_DSL_RUNTIME")
    assert find_runtime().name == "libcute_dsl_runtime.so"


def test_a_runtime_that_cannot_be_loaded_is_the_machines_fault(tmp_path):
    (tmp_path / "empty.so").write_bytes(b"")
    with pytest.raises(MachineFailed, match="cannot be loaded"):
        load_runtime(tmp_path / "empty.so")


def test_a_library_that_cannot_be_loaded_is_a_fault(tmp_path):
    (tmp_path / "empty.so").write_bytes(b"")
    with pytest.raises(DeviceFault, match=r"empty\.so cannot be loaded"):
        ObjectArm("candidate", tmp_path / "empty.so", CALL)


# The launch contract


def test_the_signature_is_read_without_a_launch(arm):
    assert parameters(arm.signature()) == [
        "mX: Tensor([n0], float32)",
        "mY: Tensor([n0], float32)",
        "scale: float32",
    ]


def test_parameters_are_split_outside_of_brackets_only():
    text = "a: Tensor([n0, n1], bfloat16), aux: Tuple[None, Tuple[int32, None]], n: int32"
    assert parameters(text) == [
        "a: Tensor([n0, n1], bfloat16)",
        "aux: Tuple[None, Tuple[int32, None]]",
        "n: int32",
    ]
    assert parameters("") == []


def test_the_same_contract_is_no_breach(arm, libraries):
    other = ObjectArm("seed", libraries["two-kernels"], CALL)
    assert contract_breach(arm, other) == ""


class Refusing(ObjectArm):
    """An arm whose object answers a call without arguments as given."""

    def __init__(self, message, kind=TypeError):
        self.name, self._message, self._kind = "candidate", message, kind

    def _kernel(self, *values):
        if self._message is not None:
            raise self._kind(self._message)


def refusal(text):
    return f"Expects {len(parameters(text))} parameters when calling: `__call__({text})`"


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (refusal("mX: Tensor([n0], float32), mY: Tensor([n0], float32)"), "2 parameters"),
        (
            refusal("mX: Tensor([n0], float32), mY: Tensor([n1], float32), scale: float32"),
            "parameter 2 is 'mY: Tensor([n1], float32)', the seed has 'mY: Tensor([n0], float32)'",
        ),
        (
            refusal("mX: Tensor([n0], float32), mY: Tensor([n0], float32), scale: int32"),
            "parameter 3",
        ),
        ("no", "refuses a call with no"),
        (None, "is not refused"),
    ],
    ids=["count", "shape", "type", "other", "accepted"],
)
def test_another_contract_is_told(arm, message, says):
    assert says in contract_breach(Refusing(message), arm)


# Calls


class Recording(ObjectArm):
    """An arm whose object keeps what it is called with."""

    def __init__(self, arguments):
        self.name, self._arguments, self.calls = "candidate", arguments, []

    def _kernel(self, *values):
        self.calls.append(values)


def test_tensors_stand_for_inputs_then_outputs():
    def arguments(params):
        shape = (2, params["n"])
        aux = ("tuple", [("none",), ("tensor", [5], "float32")])
        call = [("tensor", shape, "bfloat16"), ("float", 1), ("int", 7), ("none",), aux]
        return [*call, ("tensor", shape, "bfloat16")]

    q, out = (torch.zeros(2, 3, dtype=torch.bfloat16) for _ in range(2))
    extra = torch.zeros(5)
    arm = Recording(arguments)
    launch = arm.bind({"n": 3}, [q, extra], [out])
    assert arm.calls == []
    launch(), launch()
    assert len(arm.calls) == 2
    first = arm.calls[0]
    assert first[0] is q and first[5] is out and first[4][1] is extra
    assert first[1:4] == (1.0, 7, None) and first[4][0] is None
    assert isinstance(first[1], float) and isinstance(first[2], int)


@pytest.mark.parametrize(
    ("inputs", "outputs", "says"),
    [
        ([(1000,)], [], "more tensor arguments"),
        ([(1000,)], [(1000,), (1000,)], "1 tensors more"),
        ([(1000,)], [(999,)], "999"),
    ],
)
def test_tensors_that_do_not_fit_are_our_defect(inputs, outputs, says):
    make = partial(torch.zeros, dtype=torch.float32)
    arm = Recording(CALL)
    with pytest.raises(ValueError, match=says):
        arm.bind({}, [*map(make, inputs)], [*map(make, outputs)])


def test_another_dtype_does_not_fit():
    half = torch.zeros(1000, dtype=torch.float16)
    with pytest.raises(ValueError, match="float16"):
        Recording(CALL).bind({}, [half], [torch.zeros(1000)])


def test_an_unknown_argument_is_our_defect():
    with pytest.raises(ValueError, match="arguments"):
        Recording([("matrix", (1,))]).bind({}, [], [])


@pytest.mark.parametrize(
    "kind", [RuntimeError, TypeError, ValueError, KeyError, IndexError, AssertionError, MemoryError]
)
def test_a_refused_launch_is_a_fault(kind):
    arm = Refusing("CUDA error\n700", kind)
    arm._arguments = CALL
    launch = arm.bind({}, [torch.zeros(1000)], [torch.zeros(1000)])
    with pytest.raises(DeviceFault, match=r"candidate: the launch failed: .*CUDA error"):
        launch()


def test_tensors_elsewhere_are_refused_by_the_object(arm):
    """Its own host code looks at where its arguments lie, before it touches a driver."""
    launch = arm.bind({}, [torch.zeros(1000)], [torch.zeros(1000)])
    with pytest.raises(DeviceFault, match="cuda"):
        launch()


def test_nothing_heavy_is_imported_with_the_module():
    heavy = "{'torch', 'tvm_ffi', 'pydantic'}"
    code = f"import sys, {kernel.__name__}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# On a real GPU


@pytest.fixture
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return "cuda"


@pytest.mark.gpu
def test_a_launch_computes(arm, cuda):
    x, y = torch.arange(1000.0, device=cuda), torch.full((1000,), torch.nan, device=cuda)
    launch = arm.bind({}, [x], [y])
    torch.cuda.synchronize()
    assert torch.isnan(y).all()
    launch()
    torch.cuda.synchronize()
    assert torch.equal(y, 2 * x)


@pytest.mark.gpu
def test_launches_wait_for_what_is_on_the_default_stream_and_for_no_other(arm, cuda):
    """Poison, launch and events are all there: a measuring process has no other stream."""
    x, y = torch.ones(1000, device=cuda), torch.zeros(1000, device=cuda)
    launch = arm.bind({}, [x], [y])
    launch()
    assert y.sum().item() == 2000.0  # loads the kernels that are used below, which waits for all
    y.zero_()
    torch.cuda.synchronize()
    side, start, end = torch.cuda.Stream(), *(torch.cuda.Event(True) for _ in range(2))
    start.record()
    torch.cuda._sleep(200_000_000)  # about a tenth of a second
    launch()
    end.record()
    with torch.cuda.stream(side):
        seen = y.sum().item()  # on a stream that waits for nobody
    torch.cuda.synchronize()
    assert seen == 0.0, "the launch did not wait for the default stream"
    assert y.sum().item() == 2000.0
    assert start.elapsed_time(end) > 20


@pytest.mark.gpu
def test_a_launch_costs_little_on_the_host(arm, cuda):
    import time

    x, y = torch.ones(1000, device=cuda), torch.zeros(1000, device=cuda)
    launch = arm.bind({}, [x], [y])
    for _ in range(100):
        launch()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(500):
        launch()
    spent = (time.perf_counter() - started) / 500
    torch.cuda.synchronize()
    assert spent < 50e-6, f"{spent * 1e6:.1f} µs a launch"
