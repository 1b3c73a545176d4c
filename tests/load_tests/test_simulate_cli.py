"""`python -m load_tests simulate`: the tables it prints, the files it writes, the rules it is told."""

import json

import pytest

from load_tests.simulate.__main__ import main
from load_tests.simulate.residency import RESIDENCIES
from load_tests.simulate.rules import DEFAULTS, rule

QUICK = ["--horizon-seconds", "0.3", "--seeds", "1"]
PNG = b"\x89PNG\r\n\x1a\n"


def test_a_table_is_printed_and_written_as_json_and_as_a_picture(tmp_path, capsys):
    rules = ["edf", "fair sizing=fill max_wait_ms=2"]
    named = [argument for text in rules for argument in ("--rule", text)]
    assert main(["table", "--scenario", "S1,M3", *named, "--loads", "1,2", "--out", str(tmp_path), *QUICK]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""  # progress is for terminals
    results = json.loads((tmp_path / "simulate_table.json").read_text())
    assert {name: list(some) for name, some in results.items()} == {"S1": rules, "M3": rules}
    for text in rules:
        assert printed.out.count(text) >= 4
        found = results["M3"][text]
        assert f" {found['r99']:.0f} " in printed.out
        assert found["r99_worst"] <= found["r99"]
        assert list(found["loads"]) == ["1", "2"]
        models = found["loads"]["2"]["models"]
        assert len(models) == 20
        assert sum(each["share"] for each in models.values()) == pytest.approx(1.0)
    assert (tmp_path / "simulate_table.png").read_bytes().startswith(PNG)


def test_r99_alone_has_no_loads(tmp_path, capsys):
    assert main(["r99", "--scenario", "S2", "--discipline", "edf", "--out", str(tmp_path), *QUICK]) == 0
    results = json.loads((tmp_path / "simulate_r99.json").read_text())["S2"]
    assert list(results) == [text for text in DEFAULTS if text.startswith("edf")]
    assert all(each["r99"] > 0 and not each["loads"] for each in results.values())
    assert "goodput" not in capsys.readouterr().out


def test_shares_are_set_against_the_weights(tmp_path, capsys):
    assert main(["shares", "--scenario", "W1,F2", "--rule", "fair", "--out", str(tmp_path), *QUICK]) == 0
    [load] = json.loads((tmp_path / "simulate_shares.json").read_text())["W1"]["fair"]["loads"].values()
    assert load["models"]["a"]["share"] == pytest.approx(0.75, abs=0.05)
    assert "a 0.75" in capsys.readouterr().out


def test_rules_of_residency_are_set_against_each_other(tmp_path, capsys):
    assert main(["residency", "--scenario", "R10,R3", "--out", str(tmp_path), *QUICK]) == 0
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "simulate_residency.json").read_text())
    for name, rules in results.items():
        assert list(rules) == [f"{each} weights={kind}" for each in ("fair", "edf") for kind in RESIDENCIES]
        for text, found in rules.items():
            assert list(found["loads"]) == ["0.7", "1.2"]
            waits = [load["waiting_for_weights"] > 0 for load in found["loads"].values()]
            assert waits == [text.endswith("waiting")] * 2
            loads = [sum(each["loads"] for each in load["models"].values()) for load in found["loads"].values()]
            assert loads == [load["loads"] for load in found["loads"].values()]
            assert [each > 0 for each in loads] == [not text.endswith("resident")] * 2
        assert f"{name}: " in printed
    assert (tmp_path / "simulate_residency.png").read_bytes().startswith(PNG)


def test_background_loads_may_cost_executions_something(tmp_path):
    def goodput(*more):
        rules = ["--rule", "edf", "--loads", "1"]
        main(["residency", "--scenario", "R10", *rules, "--out", str(tmp_path), *QUICK, *more])
        results = json.loads((tmp_path / "simulate_residency.json").read_text())
        return results["R10"]["edf"]["loads"]["1"]["goodput"]

    assert goodput("--drag", "20") < goodput()


def test_other_arrivals_can_be_tried(tmp_path, capsys):
    command = ["r99", "--scenario", "S1", "--rule", "edf", "--out", str(tmp_path), *QUICK]
    main(command)
    poisson = capsys.readouterr().out
    main([*command, "--arrivals", "steady"])
    assert capsys.readouterr().out != poisson


def test_noise_changes_the_outcome_and_the_same_command_does_not(tmp_path):
    def figures(*more):
        main(["r99", "--scenario", "M1", "--rule", "edf", "--out", str(tmp_path), *QUICK, *more])
        return json.loads((tmp_path / "simulate_r99.json").read_text())

    assert figures() == figures()
    assert figures() != figures("--noise", "0.3,0.01")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--scenario", "S1,S9"], "S9"),
        (["shares", "--scenario", "S1"], "S1"),
        (["--rule", "edf sizing=largest"], "sizing"),
        (["--rule", "edf speed=9"], "speed"),
        (["--rule", "edf weights=anywhere"], "anywhere"),
        (["residency", "--scenario", "S1"], "S1"),
        (["--rule", "lottery"], "discipline"),
    ],
)
def test_what_is_not_there_is_named(arguments, complaint, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert complaint in capsys.readouterr().err


def test_a_rule_is_a_configuration_and_a_policy():
    made = rule("edf  sizing=fill admission=predict max_wait_ms=2.5 reserve_ms=1")
    assert made.label == "edf sizing=fill admission=predict max_wait_ms=2.5 reserve_ms=1"
    assert (made.config.discipline, made.config.sizing, made.config.admission) == ("edf", "fill", "predict")
    assert (made.policy.max_wait_ms, made.policy.reserve_ms) == (2.5, 1.0)


def test_value_is_set_against_the_others_with_the_bound_and_the_worst_model(tmp_path, capsys):
    asked = ["value", "--scenario", "S1,C2", "--rule", "edf", "--rule", "edf sizing=value rise=0.5", "--loads", "1,2"]
    assert main([*asked, "--jobs", "2", "--out", str(tmp_path), *QUICK]) == 0
    printed = capsys.readouterr().out
    assert printed.count("no rule exceeds") == 2
    assert printed.count("worst model in time") == 1  # S1 has one model
    assert printed.count("less the best other") == 1
    load = json.loads((tmp_path / "simulate_value.json").read_text())["C2"]["edf sizing=value rise=0.5"]["loads"]["2"]
    assert load["worst_by_seed"] == [load["worst_attainment"]]
    assert load["worst_less_best_other"]["rule"] == "edf"
    assert load["worst_less_best_other"]["noise"] is None  # of one seed
    assert (tmp_path / "simulate_value.png").read_bytes().startswith(PNG)
