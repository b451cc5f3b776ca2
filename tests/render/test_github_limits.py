from __future__ import annotations

import pytest

from kci.render.workflow_rules import check_workflows, limits
from kci.render.workflow_yaml import contexts, functions

HEAD = "on: push\npermissions: {}\njobs:\n"


def job(name: str = "a", body: str = "", *, steps: str = "[]") -> str:
    usual = ("runs-on: ubuntu-24.04", "timeout-minutes: 5", "permissions: {}")
    kept = [line for line in usual if line.split(":")[0] not in {own.split(":")[0] for own in body.splitlines()}]
    return (
        f"  {name}:\n"
        + "".join(f"    {line}\n" for line in kept)
        + "".join(f"    {line}\n" for line in body.splitlines())
        + f"    steps: {steps}\n"
    )


def rules(text: str) -> list[str]:
    return [diagnostic.rule for diagnostic in check_workflows({"kci.yml": text}, own="kci/build")]


def message(text: str) -> str:
    (diagnostic,) = check_workflows({"kci.yml": text}, own="kci/build")
    return diagnostic.message


@pytest.mark.rule("KCI410", "KCI412", "KCI418", triggers=False)
def test_a_plain_workflow_is_fine() -> None:
    assert rules(HEAD + job()) == []


@pytest.mark.rule("KCI410", triggers=True)
def test_file_size() -> None:
    text = HEAD + job()
    fits = text + "#" * (limits().max_file_bytes - len(text))
    assert rules(fits) == []
    assert rules(fits + "#") == ["KCI410"]
    assert rules(text + "é" * (limits().max_file_bytes // 2)) == ["KCI410"]


@pytest.mark.rule("KCI418", triggers=True)
@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "on: push\n",
        "- a\n",
        "",
        "jobs: []\n",
        "on: push\non: push\njobs: {a: {}}\n",
        "x: &x {}\njobs: {a: {<<: *x}}\n",
        "jobs: {a: 3}\n",
        "jobs: {a: {steps: 3}}\n",
        "jobs: {a: {needs: 5}}\n",
        "jobs: {a: {needs: [[b]]}}\n",
        "jobs: {1: {needs: b}, b: {needs: 1}}\n",
        "jobs: {a: {outputs: 5}, b: {needs: a, if: needs.a.outputs.x}}\n",
        "jobs: {a: &a {env: *a}}\n",
        "x1: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "".join(f"x{c}: &{c} [{', '.join(['*' + chr(ord(c) - 1)] * 9)}]\n" for c in "bcdefghi")
        + "jobs: {a: {env: *i}}\n",
    ],
)
def test_not_a_workflow(text: str) -> None:
    assert rules(text) == ["KCI418"]


@pytest.mark.rule("KCI411", triggers=True)
def test_expression_length() -> None:
    def workflow(length: int) -> str:
        value = "${{ github.sha }}".ljust(length, "x")
        return HEAD + job(steps="[{uses: a/b@v1, with: {x: '" + value + "'}}]")

    assert rules(workflow(limits().max_expression)) == []
    assert rules(workflow(limits().max_expression + 1)) == ["KCI411"]
    long_text = "x" * (limits().max_expression + 1)
    assert rules(HEAD + job(steps="[{run: '" + long_text + "'}]")) == []


@pytest.mark.rule("KCI412", triggers=True)
@pytest.mark.parametrize("name", ["1a", "a b", "a.b", "é", "x" * 101])
def test_job_ids(name: str) -> None:
    assert rules(HEAD + job(f'"{name}"')) == ["KCI412"]


@pytest.mark.rule("KCI412", triggers=True)
def test_job_names_must_differ() -> None:
    assert rules(HEAD + job("a", "name: Same") + job("b", "name: same")) == ["KCI412"]
    assert rules(HEAD + job("a", "name: one") + job("b", "name: other")) == []
    assert rules(HEAD + job("a", "name: KCI")) == ["KCI412"], "the required check is made in one place"


@pytest.mark.rule("KCI412", triggers=True)
def test_jobs_need_a_time_limit_and_permissions() -> None:
    text = HEAD + job()
    assert rules(text.replace("    timeout-minutes: 5\n", "")) == ["KCI412"]
    assert rules(text.replace("    permissions: {}\n", "")) == ["KCI412"]
    assert rules(text.replace("\npermissions: {}\n", "\n", 1)) == ["KCI412"]
    assert rules(text.replace("\npermissions: {}\n", "\npermissions: write-all\n", 1)) == ["KCI412"]


@pytest.mark.rule("KCI413", triggers=True)
def test_needs() -> None:
    assert rules(HEAD + job("a", "needs: b")) == ["KCI413"]
    assert rules(HEAD + job("a") + job("b", "needs: [a]")) == []
    circle = HEAD + job("a", "needs: b") + job("b", "needs: c") + job("c", "needs: a") + job("d")
    assert message(circle) == "jobs need each other: a, b, c"


@pytest.mark.rule("KCI416", triggers=True)
def test_matrix_size() -> None:
    def include(count: int) -> str:
        return HEAD + job("a", "strategy: {matrix: {include: [" + ", ".join(["{x: 1}"] * count) + "]}}")

    assert rules(include(limits().max_matrix)) == []
    assert rules(include(limits().max_matrix + 1)) == ["KCI416"]
    assert rules(include(0)) == ["KCI416"]
    square = ", ".join(str(number) for number in range(17))
    assert rules(HEAD + job("a", f"strategy: {{matrix: {{x: [{square}], y: [{square}]}}}}")) == ["KCI416"]


@pytest.mark.rule("KCI413", "KCI414", "KCI416", triggers=False)
def test_runtime_matrix_is_not_counted() -> None:
    text = (
        HEAD
        + job("p", "outputs: {m: x}")
        + job("a", "needs: p\nstrategy: {matrix: '${{ fromJSON(needs.p.outputs.m) }}'}")
    )
    assert rules(text) == []


@pytest.mark.rule("KCI414", triggers=True)
@pytest.mark.parametrize(
    "expression",
    [
        "steps.x.outputs.nope",
        "steps.y.outputs.has-work",
        "steps.x.output.has-work",
        "steps.later.outputs.matrix",
        "steps.run.outputs.other",
        "steps.own.outputs.mine",
    ],
)
def test_step_outputs_that_nothing_sets(expression: str) -> None:
    steps = (
        "[{id: x, uses: kci/build/plan@v1}, {id: run, run: 'echo value=1 >> $GITHUB_OUTPUT'}, "
        "{id: own, run: 'echo mine=1 >> $GITHUB_OUTPUT', env: {A: '${{ " + expression + " }}'}}, "
        "{id: later, uses: kci/build/plan@v1}]"
    )
    assert rules(HEAD + job(steps=steps)) == ["KCI414"]


@pytest.mark.rule("KCI411", "KCI414", "KCI417", triggers=False)
@pytest.mark.parametrize(
    "expression",
    ["steps.x.outputs.has-work", "steps.x.outcome", "steps.run.outputs.value", "'steps.zzz.outputs.a'"],
)
def test_step_outputs_that_exist(expression: str) -> None:
    steps = (
        "[{id: x, uses: kci/build/plan@v1}, {id: run, run: 'echo value=1 >> $GITHUB_OUTPUT'}, "
        '{run: x, env: {A: "${{ ' + expression + ' }}"}}]'
    )
    assert rules(HEAD + job(steps=steps)) == []


@pytest.mark.rule("KCI414", triggers=True)
@pytest.mark.parametrize(
    "expression", ["needs.p.outputs.nope", "needs.q.result", "needs.p.output.m", "needs.zzz.result"]
)
def test_job_outputs_that_nothing_sets(expression: str) -> None:
    jobs = job("p", "outputs: {m: x}") + job("q") + job("a", "needs: p\nif: ${{ " + expression + " == 'true' }}")
    assert rules(HEAD + jobs) == ["KCI414"]


@pytest.mark.rule("KCI413", "KCI414", triggers=False)
def test_job_outputs_that_exist() -> None:
    jobs = job("p", "outputs: {m: x}") + job(
        "a", "needs: p\nif: needs.p.outputs.m == 'true' && needs.p.result == 'success'"
    )
    assert rules(HEAD + jobs) == []


@pytest.mark.rule("KCI415", triggers=True)
@pytest.mark.parametrize(
    "body",
    [
        "if: ${{ env.X }}",
        "if: matrix.x == 1",
        "if: ${{ secrets.TOKEN != '' }}",
        "runs-on: ${{ env.RUNNER }}",
        "runs-on: ${{ runner.os }}",
        "strategy: {matrix: '${{ fromJSON(env.M) }}'}",
        "strategy: {matrix: '${{ fromJSON(matrix.m) }}'}",
        "timeout-minutes: ${{ steps.x.outputs.y }}",
        "name: ${{ hashFiles('x') }}",
        "name: ${{ always() }}",
        "env: {A: '${{ runner.temp }}'}",
        "concurrency: {group: '${{ secrets.X }}'}",
        "if: ${{ toJSON(env) }}",
        "if: ${{ nothing.x }}",
    ],
)
def test_contexts_that_do_not_exist_there(body: str) -> None:
    assert "KCI415" in rules(HEAD + job("a", body))


@pytest.mark.rule("KCI415", triggers=True)
@pytest.mark.parametrize(
    "place", ["concurrency: {group: '${{ env.X }}'}", "concurrency: '${{ matrix.x }}'", "run-name: '${{ secrets.X }}'"]
)
def test_contexts_of_the_workflow(place: str) -> None:
    assert rules(f"{place}\n{HEAD}{job()}") == ["KCI415"]


@pytest.mark.rule("KCI415", triggers=False)
@pytest.mark.parametrize(
    "body",
    [
        "if: ${{ always() && github.event_name == 'push' && vars.X && inputs.y }}",
        "name: ${{ matrix.a }} ${{ strategy.job-index }}",
        "env: {A: '${{ secrets.X }}'}",
        "continue-on-error: ${{ matrix.soft }}",
    ],
)
def test_contexts_that_exist_there(body: str) -> None:
    assert rules(HEAD + job("a", body)) == []


@pytest.mark.rule("KCI415", triggers=True)
def test_secrets_cannot_decide_about_a_step() -> None:
    assert rules(HEAD + job(steps="[{run: x, if: \"secrets.X != ''\"}]")) == ["KCI415"]
    assert rules(HEAD + job(steps="[{run: x, if: 'failure() && env.X'}]")) == []


@pytest.mark.rule("KCI417", triggers=True)
def test_expression_in_a_script() -> None:
    assert rules(HEAD + job(steps="[{run: 'echo ${{ github.ref }}'}]")) == ["KCI417"]
    assert rules(HEAD + job(steps="[{run: 'echo \"$REF\"', env: {REF: '${{ github.ref }}'}}]")) == []


def test_reading_expressions() -> None:
    assert contexts("fromJSON(needs.a.outputs.b)[0] || 'env.x' && !github.z.env && true") == {"needs", "github"}
    assert contexts("toJSON(matrix)") == {"matrix"}
    assert functions("!cancelled() && contains('always()', x) ") == {"cancelled", "contains"}
