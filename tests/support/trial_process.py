"""Run trials that can crash: many trials in one process, the rest in another after a crash."""

import json
import os
import subprocess
import sys

_PATIENCE = 120.0  # seconds for the imports, and for one trial that hangs
_SECONDS_A_TRIAL = 20.0


def trials_of_this_process(end_of_a_trial, numbers):
    """Run `end_of_a_trial(seed)` for each seed and print a line of JSON for each.

    Args:
        end_of_a_trial: returns the damage as text, and either an allowed end and None, or None and
            a failure.
        numbers: the seeds, as words.
    """
    for seed in map(int, numbers):
        print(f"\n{json.dumps([seed, *end_of_a_trial(seed)])}", flush=True)


def run_trials(file, folder, numbers, tally):
    """Run the trials of `python FILE FOLDER SEED SEED …`; a trial that ends its process fails."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    left = list(numbers)
    while left:
        words = [sys.executable, file, str(folder), *map(str, left)]
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, check=False,
            timeout=_PATIENCE + _SECONDS_A_TRIAL * len(left),
        )  # fmt: skip
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        lines = [line for line in lines if len(line) == 4]
        for seed, how, end, failure in lines:
            if failure:
                tally.fail(seed, f"{how}: {failure}")
            else:
                tally.add(end)
        left = left[len(lines) :]
        if left:
            tally.fail(left.pop(0), f"ended the process ({done.returncode}): {done.stderr[-900:]}")
