"""A tiny run that evaluates after every step, as a process; prints its memory as JSON."""

import json
import os
import sys

from memory import allocated_kilobytes
from tiny_run import TINY, command

from experiments.training.callbacks import EvaluateAndSave


def main(photos, folder, evaluations, leak):
    """Run it; keep `leak` kilobytes per evaluation allocated."""
    held, leaked = [], []

    def on_epoch_end(self, epoch, logs=None):
        original(self, epoch, logs)
        leaked.append(os.urandom(int(leak) * 1024))
        held.append(allocated_kilobytes())

    original = EvaluateAndSave.on_epoch_end
    EvaluateAndSave.on_epoch_end = on_epoch_end
    arguments = [f"--data_dir={photos}", f"--output_dir={folder}", f"--epochs={evaluations}"]
    if code := command(*TINY, *arguments, "--steps_per_epoch=1"):
        sys.exit(code)
    print("\n" + json.dumps(held))


if __name__ == "__main__":
    main(*sys.argv[1:])
