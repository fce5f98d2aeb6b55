"""Memory around tensors: where it lies, what it holds, what is noticed."""

import pytest
import torch

from avo_cute.measure.guarded import ALIGN_BYTES, GUARD_BYTES, POISON, Inputs, Outputs, differing

SHAPES = [((2, 3, 5), "bfloat16"), ((7,), "float32"), ((4, 4), "float16")]


def outputs():
    return Outputs(SHAPES, "cpu")


def around(tensor, index):
    """The 16-bit word `index` words after the tensor's first, wherever that is."""
    words = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.int16).set_(words)
    first = (tensor.data_ptr() - words.data_ptr()) // 2
    return whole[first + index : first + index + 1]


def test_outputs_are_aligned_contiguous_and_poison_of_every_type():
    for tensor, (shape, dtype) in zip(outputs().tensors, SHAPES, strict=True):
        assert tensor.shape == shape and tensor.dtype == getattr(torch, dtype)
        assert tensor.is_contiguous() and tensor.data_ptr() % ALIGN_BYTES == 0
        assert tensor.isnan().all()


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("distance", [1, GUARD_BYTES // 2])
def test_one_word_in_a_guard_is_noticed(side, distance):
    for index, tensor in enumerate(outputs().tensors):
        mine = outputs()
        words = tensor.numel() * tensor.element_size() // 2
        place = -distance if side < 0 else words - 1 + distance
        around(mine.tensors[index], place).add_(1)
        assert not mine.intact()
        mine.poison()
        assert mine.intact()


def test_a_nan_of_other_bits_in_a_guard_is_noticed():
    mine = outputs()
    around(mine.tensors[0], -1).view(torch.bfloat16).fill_(torch.nan)
    assert not mine.intact()


def test_unwritten_elements_are_counted_until_poison_returns():
    mine = outputs()
    first, second, third = mine.tensors
    first.zero_()
    second[:5] = torch.nan  # a NaN, but not the poison
    assert mine.unwritten() == [0, 2, 16] and mine.intact()
    mine.poison()
    assert mine.unwritten() == [30, 7, 16] and third.isnan().all()


def test_rubbish_is_finite_differs_from_time_to_time_and_leaves_the_guards():
    mine = outputs()
    mine.rubbish(1)
    before = [x.clone() for x in mine.tensors]
    assert all(x.isfinite().all() and x.std() > 0.1 for x in before)
    assert mine.intact() and mine.unwritten() == [0, 0, 0]
    mine.rubbish(2)
    assert not any(map(torch.equal, before, mine.tensors))
    mine.rubbish(1)
    assert all(map(torch.equal, before, mine.tensors))


def test_inputs_keep_values_strides_and_order():
    plain = torch.randn(3, 4, 8).to(torch.bfloat16)
    turned = torch.randn(4, 3, 8).transpose(0, 1)
    mine = Inputs([plain, turned])
    for one, other in zip(mine.tensors, (plain, turned), strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()
        assert one.data_ptr() != other.data_ptr() and one.data_ptr() % ALIGN_BYTES == 0
        assert around(one, -1).item() == POISON
    assert mine.intact() and mine.unchanged()


def test_views_of_one_tensor_stay_so_and_what_lies_between_is_nan():
    packed = torch.randn(2, 10, 6, 8).to(torch.bfloat16)
    q, k = packed[:, :10, :4], packed[:, :7, 4:]
    mine = Inputs([q, k])
    new_q, new_k = mine.tensors
    assert new_q.stride() == packed.stride() and torch.equal(new_q, q) and torch.equal(new_k, k)
    assert new_k.data_ptr() - new_q.data_ptr() == k.data_ptr() - q.data_ptr()
    gap = new_k.as_strided((3, 2, 8), packed.stride()[1:], new_k.storage_offset() + 7 * 48)
    assert gap.isnan().all()
    gap[0, 0, 0] = 0
    assert mine.intact() and not mine.unchanged()


@pytest.mark.parametrize("value", [-0.0, 1.0])
def test_a_change_of_bits_is_a_change(value):
    mine = Inputs([torch.zeros(4, dtype=torch.bfloat16)])
    mine.tensors[0][2] = value
    assert not mine.unchanged() and mine.intact()


def test_a_guard_of_an_input_is_noticed():
    mine = Inputs([torch.zeros(4, dtype=torch.bfloat16)])
    around(mine.tensors[0], 4).zero_()
    assert not mine.intact() and mine.unchanged()


def test_differing_counts_bits_not_values():
    one = torch.tensor([0.0, 1.0, torch.nan])
    assert differing(one, one.clone()) == 0
    assert differing(one, torch.tensor([-0.0, 1.0, 2.0])) == 2
