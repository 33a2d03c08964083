"""The figure of a search's trials."""

import xml.etree.ElementTree as ET

from experiments.pages.trials_figure import Tried, trials_svg


def test_a_panel_for_each_hyper_parameter():
    trials = [
        Tried({"learning_rate": 10.0**-n, "optimizer": "ab"[n % 2]}, None if n == 4 else 40 + n)
        for n in range(6)
    ]
    text = trials_svg("trials", trials, 5, ["learning_rate"], "MAP@R, %")
    drawn = ET.fromstring(text)
    said = drawn.attrib["aria-label"]
    assert said == ("6 trials, MAP@R, % from 40.0 to 45.0; best: learning_rate 1e-05, optimizer b")
    for word in ("learning_rate", "optimizer", "MAP@R, %"):
        assert word in text
    assert text == trials_svg("trials", trials, 5, ["learning_rate"], "MAP@R, %")


def test_one_trial_and_no_trial_with_a_score():
    assert trials_svg("one", [Tried({"margin": 0.5}, 40.0)], 0)
    assert trials_svg("none", [Tried({"margin": 0.5}, None)], 0) == ""
