// Which jobs of a workflow run, and how they end: the conditions as GitHub's own parser reads them, evaluated by GitHub's own
// library. What a status function says of the jobs before comes from a server that nobody has; here it is as GitHub's
// documentation says: success() is false if one of them, however far before, failed, was cancelled or was skipped.
// Standard input: {workflow, runs: [{endings, outputs, begun, contexts}]}; standard output: the results of each run.
import { Evaluator, Lexer, Parser, data } from "@actions/expressions";
import { NoOperationTraceWriter, convertWorkflowTemplate, parseWorkflow } from "@actions/workflow-parser";
import { readFileSync } from "node:fs";

const { workflow, runs } = JSON.parse(readFileSync(0, "utf8"));
const content = readFileSync(workflow, "utf8");
const { context, value } = parseWorkflow({ name: workflow, content }, new NoOperationTraceWriter());
const { jobs } = await convertWorkflowTemplate(context, value);

const nodes = jobs.map((job) => ({ id: job.id.value, needs: (job.needs ?? []).map((need) => need.value), if: job.if.expression }));
const byId = Object.fromEntries(nodes.map((node) => [node.id, node]));
const before = (id) => new Set(byId[id].needs.flatMap((need) => [need, ...before(need)]));
const ordered = [];
const visit = (node) => {
  if (ordered.includes(node)) return;
  node.needs.forEach((need) => visit(byId[need]));
  ordered.push(node);
};
nodes.forEach(visit);

const truthy = (found) => {
  const plain = JSON.parse(JSON.stringify(found, data.replacer));
  return plain !== null && plain !== false && plain !== 0 && plain !== "";
};

const decide = (node, cancelled, earlier, named) => {
  const says = {
    success: () => !cancelled && earlier.every((result) => result === "success"),
    failure: () => earlier.includes("failure"),
    cancelled: () => cancelled,
    always: () => true,
  };
  const functions = Object.keys(says).map((name) => ({ name, minArgs: 0, maxArgs: 0, call: () => new data.BooleanData(says[name]()) }));
  const known = JSON.parse(JSON.stringify(named), data.reviver);
  const tree = new Parser(new Lexer(node.if).lex().tokens, Object.keys(named), functions).parse();
  return truthy(new Evaluator(tree, known, new Map(functions.map((one) => [one.name, one]))).evaluate());
};

// In thousands of runs a job finds the same before it again and again.
const decided = new Map();
const isToRun = (...found) => {
  const key = JSON.stringify(found);
  if (!decided.has(key)) decided.set(key, decide(byId[found[0]], ...found.slice(1)));
  return decided.get(key);
};

const simulate = ({ endings, outputs, begun, contexts }) => {
  const results = {};
  for (const [index, node] of ordered.entries()) {
    const cancelled = begun !== null && index >= begun;
    const earlier = [...before(node.id)].map((id) => results[id]);
    const needs = Object.fromEntries(
      node.needs.map((id) => [id, { result: results[id], outputs: results[id] === "success" ? (outputs[id] ?? {}) : {} }]),
    );
    results[node.id] = isToRun(node.id, cancelled, earlier, { ...contexts, needs }) ? (endings[node.id] ?? "success") : "skipped";
  }
  return results;
};
process.stdout.write(JSON.stringify(runs.map(simulate)));
