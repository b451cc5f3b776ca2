// Evaluates expressions as GitHub does, with its own library. Standard input: a list of {expression, contexts}; standard
// output: the results, as JSON.
import { Evaluator, Lexer, Parser, data } from "@actions/expressions";

let text = "";
for await (const chunk of process.stdin) text += chunk;
const results = JSON.parse(text).map(({ expression, contexts }) => {
  const tokens = new Lexer(expression).lex().tokens;
  const tree = new Parser(tokens, Object.keys(contexts), []).parse();
  const known = JSON.parse(JSON.stringify(contexts), data.reviver);
  return new Evaluator(tree, known).evaluate();
});
process.stdout.write(JSON.stringify(results, data.replacer));
