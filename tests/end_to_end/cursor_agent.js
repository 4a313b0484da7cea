// Sends a prompt to Cursor's agent, which reads the settings of the user and of the current folder:
//
//     node cursor_agent.js PACKAGE PROMPT

const { Agent } = require(process.argv[2]);

async function main() {
  const local = { cwd: process.cwd(), settingSources: ["user", "project"], enableAgentRetries: false };
  const agent = await Agent.create({ apiKey: "none", model: { id: "fake" }, local });
  const run = await agent.send(process.argv[3]);
  for await (const message of run.stream()) console.log(JSON.stringify(message));
}

main().then(() => process.exit(0), (error) => (console.error(error), process.exit(1)));
