// Calls the tools of MCP servers as extensions do, by the workspace's probe-1.json, then by probe-2.json: `calls` is a
// list of [tool, input]. Writes found-1.json and found-2.json: the names of the tools, the text of each result, and the
// JSON schema of mcp.json. Then executes VS Code's command `command`.

const fs = require("node:fs/promises");
const vscode = require("vscode");

const tool = (name) => vscode.lm.tools.find((one) => one.name.startsWith("mcp_") && one.name.endsWith(`_${name}`));

const pause = () => new Promise((done) => setTimeout(done, 200));

async function asked(file) {
  for (;;) {
    try {
      return JSON.parse(await fs.readFile(file, "utf8"));
    } catch (error) {
      if (error.code !== "ENOENT") throw error;
      await pause();
    }
  }
}

async function callAll(calls) {
  while (!tool(calls[0][0])) {
    // The command of "Start" above a server in mcp.json. VS Code reads that file some time after its own start.
    await vscode.commands.executeCommand("workbench.mcp.startServer", "*", { waitForLiveTools: true });
    await pause();
  }
  const texts = [];
  for (const [name, input] of calls) {
    const { content } = await vscode.lm.invokeTool(tool(name).name, { input, toolInvocationToken: undefined });
    texts.push(content.map((part) => part.value ?? "").join("\n"));
  }
  return texts;
}

async function find(calls) {
  const texts = await callAll(calls);
  const tools = vscode.lm.tools.map((one) => one.name).filter((name) => name.startsWith("mcp_"));
  const schema = await vscode.workspace.openTextDocument(vscode.Uri.parse("vscode://schemas/mcp"));
  return { texts, tools, schema: JSON.parse(schema.getText()) };
}

exports.activate = async () => {
  const folder = vscode.workspace.workspaceFolders[0].uri.fsPath;
  for (const round of [1, 2]) {
    const { command, calls } = await asked(`${folder}/probe-${round}.json`);
    const found = await find(calls).catch((error) => ({ error: String(error.stack) }));
    await fs.writeFile(`${folder}/part.json`, JSON.stringify(found));
    await fs.rename(`${folder}/part.json`, `${folder}/found-${round}.json`);
    if (command) await vscode.commands.executeCommand(command);
    while (tool(calls[0][0])) await pause(); // until the test removes the server
  }
};
