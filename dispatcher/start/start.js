// Checks fields while the user types, uploads an archive with a progress bar, and accepts dropped files.
// The server does all checks; without this script the button "Check" requests them.
"use strict";
(() => {
  const form = document.querySelector("form.start");
  const file = document.getElementById("archive");
  const message = document.getElementById("upload");
  const sending = document.getElementById("sending");
  const drop = document.getElementById("drop");
  const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
  const AFTER_MS = 600;
  const CHECK_MS = 30000;
  const due = new Map(); // field -> timer of its next check
  const queued = new Set(); // fields to check, one at a time: the server limits concurrent checks
  let transfer = null;
  let running = null; // {name, request} of the check that runs

  // --- results below a field

  const show = (name, { problem = "", html = "" }) => {
    const input = document.getElementById(name);
    document.getElementById(`${name}-mistake`)?.remove();
    if (problem) {
      const mistake = document.createElement("p");
      mistake.className = "mistake";
      mistake.id = `${name}-mistake`;
      mistake.textContent = problem;
      input.after(mistake);
      input.setAttribute("aria-describedby", mistake.id);
      input.setAttribute("aria-invalid", "true");
    } else {
      input.removeAttribute("aria-invalid");
      input.removeAttribute("aria-describedby");
    }
    const found = document.getElementById(`${name}-found`);
    if (found) found.innerHTML = html;
  };

  const busy = (name, text) => {
    const found = document.getElementById(`${name}-found`);
    if (!found) return;
    const word = document.createElement("p");
    word.className = "hint checking";
    word.textContent = text;
    found.replaceChildren(...(text ? [word] : []));
  };

  const send = (fields, started = () => {}) =>
    new Promise((resolve, reject) => {
      const body = new FormData();
      body.set("csrf", form.elements.csrf.value);
      for (const [name, value] of fields) body.append(name, value);
      const request = new XMLHttpRequest(); // fetch does not report upload progress
      request.open("POST", form.dataset.check);
      request.responseType = "json";
      request.setRequestHeader("Accept", "application/json");
      request.upload.addEventListener("progress", (event) => {
        sending.querySelector("progress").value = event.loaded / event.total;
        sending.querySelector("span").textContent = `${mib(event.loaded)} of ${mib(event.total)}`;
      });
      request.addEventListener("load", () => (request.status === 200 ? resolve(request.response) : reject(new Error(request.response?.message || `The server answered ${request.status}.`))));
      request.addEventListener("error", () => reject(new Error("The server does not answer.")));
      request.addEventListener("abort", () => reject(new Error("")));
      request.addEventListener("timeout", () => reject(new Error("The server does not answer.")));
      request.timeout = fields.some(([, value]) => value instanceof File) ? 0 : CHECK_MS;
      request.send(body);
      started(request);
    });

  // --- locators and names, shortly after the last key

  const group = (name) => {
    const split = name.match(/^(train|valid|test|predict)_/)?.[1];
    return split ? [`${split}_metadata`, `${split}_objects`] : [name];
  };

  // Fill the form from an experiment file, and update the button's label.
  const takeOver = async ({ fields, filled }) => {
    const runs = Boolean(fields.file?.html.trim());
    form.querySelector('button[value="create"]').textContent = runs ? "Create experiment and start" : "Create experiment";
    const changed = Object.keys(filled).filter((name) => !["file", "author"].includes(name) && form.elements[name].value !== filled[name]);
    for (const name of changed) form.elements[name].value = filled[name];
    const keys = new Set(changed.map((name) => group(name)[0]));
    for (const key of keys) check(key);
  };

  // Check a field, and another one it belongs to. A newer value cancels the check of an older one.
  const check = (name) => {
    const key = group(name)[0];
    clearTimeout(due.get(key));
    due.delete(key);
    queued.add(key);
    if (running?.name === key) running.request?.abort();
    work();
  };

  const work = async () => {
    if (running || !queued.size) return;
    const [name] = queued;
    queued.delete(name);
    running = { name, request: null };
    try {
      await checked(name);
    } finally {
      running = null;
    }
    if (queued.size) work();
    else if (!due.size) document.dispatchEvent(new CustomEvent("start:checked"));
  };

  const checked = async (name) => {
    const names = group(name);
    const fields = names.map((each) => [each, form.elements[each].value]);
    if (name === "file") fields.push(["kept_archive", form.elements.kept_archive.value]);
    if (!fields.some(([, value]) => value.trim())) return names.forEach((each) => show(each, {}));
    names.forEach((each) => form.elements[each].value.trim() && busy(each, "Checking \u2026"));
    try {
      const answer = await send(fields, (request) => (running.request = request));
      if (queued.has(name) || due.has(name)) return; // the user typed in between
      for (const each of names) show(each, answer.fields[each] || {});
      if (name === "file") await takeOver(answer);
    } catch (error) {
      if (error.message) names.forEach((each) => form.elements[each].value.trim() && busy(each, `Not checked. ${error.message}`));
    }
  };

  form.addEventListener("input", ({ target }) => {
    if (target.type === "file" || target.type === "checkbox" || !target.name) return;
    const key = group(target.name)[0];
    clearTimeout(due.get(key));
    due.set(key, setTimeout(() => check(key), AFTER_MS));
    if (running?.name === key) running.request?.abort();
  });

  // --- the archive

  const take = async () => {
    const chosen = file.files[0];
    const isTooLarge = chosen && chosen.size > Number(file.dataset.limit);
    const text = `This file is ${mib(chosen?.size)}, the limit is ${mib(Number(file.dataset.limit))}. Select a smaller archive.`;
    file.setCustomValidity(isTooLarge ? text : "");
    message.textContent = isTooLarge ? text : "";
    if (!chosen || isTooLarge) return;
    sending.hidden = false;
    try {
      const answer = await send([["archive", chosen]], (request) => (transfer = request));
      show("archive", answer.fields.archive || {});
      if (answer.archive) {
        form.elements.kept_archive.value = answer.archive;
        form.elements.kept_archive_name.value = answer.archive_name;
        file.value = ""; // already stored: do not send it again
        if (form.elements.file.value.trim()) check("file");
        message.textContent = `${answer.archive_name} is stored and will be used.`;
      }
    } catch (error) {
      file.value = "";
      message.textContent = error.message || "The upload was cancelled.";
    }
    sending.hidden = true;
  };
  file.addEventListener("change", take);
  sending.querySelector("button").addEventListener("click", () => transfer?.abort());

  // --- the experiment file

  const takeText = async (chosen) => {
    form.elements.file.value = await chosen.text();
    form.elements.file.rows = 12;
    form.elements.file_upload.value = ""; // the text field has its content
    check("file");
  };
  form.elements.file_upload.addEventListener("change", ({ target }) => target.files[0] && takeText(target.files[0]));

  // --- dropped files: an archive, an experiment file, or locators as JSON

  const fill = (text) => {
    const given = JSON.parse(text);
    const locators = given.locators || given;
    for (const split of ["train", "valid", "test", "predict"]) {
      const found = locators[split];
      if (!found) continue;
      form.elements[`${split}_metadata`].value = typeof found === "string" ? found : found.metadata || "";
      form.elements[`${split}_objects`].value = typeof found === "string" ? "" : found.objects || "";
      check(`${split}_metadata`);
    }
    if (Array.isArray(locators.misc)) {
      form.elements.misc.value = locators.misc.join("\n");
      check("misc");
    }
  };

  const isFile = (event) => [...(event.dataTransfer?.types || [])].includes("Files");
  addEventListener("dragover", (event) => {
    if (!isFile(event)) return;
    event.preventDefault();
    drop.classList.add("over");
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && drop.classList.remove("over"));
  addEventListener("drop", async (event) => {
    if (!isFile(event)) return;
    event.preventDefault();
    drop.classList.remove("over");
    const [dropped] = event.dataTransfer.files;
    if (dropped.name.endsWith(".json")) {
      try {
        fill(await dropped.text());
      } catch {
        message.textContent = `${dropped.name} contains no locators: expected {"train": {"metadata": ..., "objects": ...}}.`;
      }
      return;
    }
    if (/\.ya?ml$/.test(dropped.name)) return takeText(dropped);
    file.files = event.dataTransfer.files;
    take();
  });

  // Submission waits for the checks, and goes on unless a field needs a correction.
  let isSending = false;
  form.addEventListener("submit", async (event) => {
    if (!file.checkValidity()) {
      event.preventDefault();
      file.focus();
      return;
    }
    if (isSending) return;
    [...due.keys()].forEach(check);
    if (!running) return;
    event.preventDefault();
    const button = event.submitter;
    button.disabled = true;
    message.textContent = "Waiting for the checks \u2026";
    await new Promise((done) => document.addEventListener("start:checked", done, { once: true }));
    button.disabled = false;
    message.textContent = "";
    const wrong = form.querySelector('[aria-invalid="true"]');
    if (wrong) {
      wrong.focus();
      message.textContent = "A field needs a correction.";
      return;
    }
    isSending = true;
    form.requestSubmit(button);
  });
})();
