// Parses workflow files with GitHub's own parser. Arguments: the files; standard output: an error a line.
import { NoOperationTraceWriter, convertWorkflowTemplate, parseWorkflow } from "@actions/workflow-parser";
import { readFileSync } from "node:fs";

for (const name of process.argv.slice(2)) {
  const content = readFileSync(name, "utf8");
  const { context, value } = parseWorkflow({ name, content }, new NoOperationTraceWriter());
  const converted = value ? await convertWorkflowTemplate(context, value) : {};
  const errors = [...context.errors.getErrors(), ...(converted.errors ?? [])];
  for (const error of errors) console.log(`${name}: ${error.message ?? error.Message}`);
}
