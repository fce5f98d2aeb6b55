"""Whether a GPU answers: a fresh process computes something small on it and looks at the result.

Run by path; the environment says which GPU. Prints "ok" and its name, or fails with one line.
"""

import sys
import time

N = 512


def main() -> None:
    started = time.monotonic()
    import torch

    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device")
    try:
        ones = torch.ones(N, N, device="cuda")
        total = (ones @ ones).double().sum().item()
        free, _ = torch.cuda.mem_get_info()
    except RuntimeError as error:
        sys.exit(" ".join(str(error).split())[:300])
    if total != float(N) ** 3:
        sys.exit(f"a matrix product of ones adds up to {total}, not to {N**3}")
    name, seconds = torch.cuda.get_device_name(), time.monotonic() - started
    sys.stdout.write(f"ok {name}, {free >> 20} MiB free, after {seconds:.1f} s\n")


if __name__ == "__main__":
    main()
