// Parses workflow files with GitHub's own parser. Standard input: a list of files; standard output: a list of errors.
import { NoOperationTraceWriter, convertWorkflowTemplate, parseWorkflow } from "@actions/workflow-parser";
import { readFileSync } from "node:fs";

const found = [];
for (const name of JSON.parse(readFileSync(0, "utf8"))) {
  const content = readFileSync(name, "utf8");
  const { context, value } = parseWorkflow({ name, content }, new NoOperationTraceWriter());
  const converted = value ? await convertWorkflowTemplate(context, value) : {};
  const errors = [...context.errors.getErrors(), ...(converted.errors ?? [])];
  for (const error of errors) found.push(`${name}: ${error.message ?? error.Message}`);
}
process.stdout.write(JSON.stringify(found));
