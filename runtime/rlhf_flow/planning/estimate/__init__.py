"""How long a plan takes: what its calls work on, what each takes, and how they follow each other.

    call_batches.py   rows and columns of a call of the step
    planned_roles.py  roles and engines of a plan, as the time model takes them
    call_prices.py    seconds of each call, by the time model (seconds/)
    step_tasks.py     the calls as tasks of the simulation (simulation.py)
    evaluate.py       both together: `evaluate(problem, plan, hardware) -> Estimate`

Pure: nothing here chooses anything. Of a job's graphs only the step is estimated.
"""
