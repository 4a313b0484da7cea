import { html } from "./vendor/preact.js";
export default { title: "Timeline", key: "t", view: () => html`<div class="body">soon</div>` };
