"""A small workload to time: doubles its input, on whatever device."""

import random

import pytest
import torch

from avo_cute.measure.request import Effort, Point
from avo_cute.measure.timing import Job

POINT = Point("double", {"factor": 2.0}, "public")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def double(params, inputs, outputs):
    torch.mul(inputs[0], params["factor"], out=outputs[0])


def check_double(arm, params, inputs, outputs):
    return "" if torch.equal(outputs[0], inputs[0] * params["factor"]) else "not the double"


def job_for(device="cpu", seed=7, check=check_double, shape=(32, 64), **kwargs):
    """A `Job`; `rounds`, `visit_s`, `cold` and `warm_s` go into its effort."""
    effort = {"warm_s": 0.02, "visit_s": 0.005, "rounds": 20}
    effort |= {k: kwargs.pop(k) for k in list(kwargs) if k in Effort.__slots__}

    def make_inputs(seed):
        generator = torch.Generator(device).manual_seed(seed)
        return POINT.params, (torch.randn(shape, generator=generator, device=device),)

    def make_outputs():
        return (torch.empty(shape, device=device),)

    return Job(Effort(**effort), random.Random(seed), make_inputs, make_outputs, check, **kwargs)
