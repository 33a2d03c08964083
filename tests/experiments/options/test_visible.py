import pytest

from experiments.options import UsageError, run_command
from experiments.options.visible import visible


@pytest.mark.parametrize("name", ["é ü.png", "قطة.png", "a\tb", "👩\u200d🌾.png"])
def test_names_in_any_language_are_unchanged(name):
    assert visible(name) == name


def test_messages_contain_no_control_characters(capsys):
    def main(argv):
        raise UsageError("no image: a\u202egnp\x1b]0;x\x07.png")

    assert run_command(main, ["command"]) == 2
    assert capsys.readouterr().err == "error: no image: a\\u202egnp\\u001b]0;x\\u0007.png\n"
