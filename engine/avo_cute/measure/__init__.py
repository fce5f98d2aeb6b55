"""Measure: objects become numbers, on a GPU, in a process that never sees a candidate's Python.

`request` says what is asked for and what comes back, as plain data. On the engine's side
`process` starts one worker per evaluation, `devices` says on which GPU and keeps others away.
In the worker `kernel` loads linked objects, `correctness` compares with fp64, `timing` takes
paired samples, `baselines` and `selftest` give them meaning. What is concluded from samples is
`decision`'s business, not theirs.
"""
