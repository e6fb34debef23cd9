// Refresh without a reload, ages of times, and actions with a dry run. No page needs it to be read.
"use strict";
(() => {
  const ACTION_LIMIT_MS = 60000;
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

  // Times: the server sends the time, so that an unchanged page stays the same; the age is shown here.
  const age = (seconds) => {
    const size = Math.abs(seconds);
    if (size < 1) return "now";
    const [unit, name] = UNITS.find(([length]) => size >= length) || UNITS[3];
    const text = `${Math.floor(size / unit)} ${name}`;
    return seconds >= 0 ? `${text} ago` : `in ${text}`;
  };
  const showAges = () => {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const at = Date.parse(time.dateTime);
      if (!time.title) time.title = time.textContent;
      const text = age((Date.now() - at) / 1000);
      if (time.textContent !== text) time.textContent = text;
    }
  };

  // Refresh: the same page again; only parts that differ are replaced.
  const refresh = document.getElementById("refresh");
  const failed = document.getElementById("refresh-failed");
  const sources = new Map();
  const parts = (page) => page.querySelectorAll("[data-live][id]");
  for (const part of parts(document)) sources.set(part.id, part.innerHTML);
  let tag = null;
  let failures = 0;
  let timer = null;
  let running = false;

  const replace = (part, html) => {
    const open = new Set([...part.querySelectorAll("details[open][id]")].map((details) => details.id));
    const scrolled = [...part.querySelectorAll(".scroll[id]")].map((box) => [box.id, box.scrollLeft]);
    const active = document.activeElement;
    const focused = active && part.contains(active) ? active : null;
    const href = focused && focused.getAttribute("href");
    const id = focused && focused.id;
    part.innerHTML = html;
    for (const details of part.querySelectorAll("details[id]")) details.open = open.has(details.id);
    for (const [box, left] of scrolled) {
      const found = document.getElementById(box);
      if (found) found.scrollLeft = left;
    }
    if (focused) {
      const same = (id && document.getElementById(id)) ||
        (href && [...part.querySelectorAll("a[href]")].find((link) => link.getAttribute("href") === href));
      (same || document.getElementById("content")).focus({ preventScroll: true });
    }
  };

  const update = async () => {
    if (running) return;
    running = true;
    const limit = new AbortController();
    const stop = setTimeout(() => limit.abort(), 15000);
    try {
      const headers = tag ? { "If-None-Match": tag } : {};
      const answer = await fetch(location.href, { headers, cache: "no-store", signal: limit.signal });
      if (answer.status !== 304) {
        if (!answer.ok) throw new Error(answer.status === 401 || answer.status === 403 ? "you are no longer logged in" : `status ${answer.status}`);
        tag = answer.headers.get("ETag");
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const part of parts(page)) {
          const here = document.getElementById(part.id);
          if (here && sources.get(part.id) !== part.innerHTML) {
            sources.set(part.id, part.innerHTML);
            replace(here, part.innerHTML);
          }
        }
        document.title = page.title;
        const next = page.getElementById("refresh");
        if (next) refresh.dataset.refreshS = next.dataset.refreshS;
      }
      failures = 0;
      failed.textContent = "";
      refresh.classList.remove("stale");
    } catch (error) {
      failures += 1;
      refresh.classList.add("stale");
      const why = error.name === "AbortError" ? "no answer in 15 s" : error instanceof TypeError ? "the server does not answer" : error.message;
      const text = `This page could not be refreshed: ${why}. It shows an older state, and tries again.`;
      if (failed.textContent !== text) failed.textContent = text;
    } finally {
      clearTimeout(stop);
      running = false;
      showAges();
    }
  };
  const plan = () => {
    clearTimeout(timer);
    if (!refresh || document.hidden) return;
    const base = Number(refresh.dataset.refreshS) * 1000;
    timer = setTimeout(async () => {
      await update();
      plan();
    }, Math.min(base * 2 ** Math.min(failures, 4), 60000));
  };
  document.addEventListener("visibilitychange", async () => {
    if (!document.hidden && refresh) await update();
    plan();
  });
  showAges();
  setInterval(() => document.hidden || showAges(), 1000);
  plan();

  // In Airflow's frame, whose sandbox forbids it to navigate the outer page: the outer page follows a link itself.
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[target="_top"]');
    if (!link || parent === window || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const outer = parent.document.createElement("a");
    outer.href = link.href;
    parent.document.body.append(outer);
    outer.click();
    outer.remove();
  });

  // Actions: a dry run says what would be done, then a person confirms.
  const dialog = document.getElementById("ask");
  if (!dialog) return;
  const at = (id) => document.getElementById(id);
  let asked = null;

  const post = async (action, body) => {
    const answer = await fetch(`${document.body.dataset.api}/actions/${action}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(ACTION_LIMIT_MS),
    }).catch((error) => {
      if (error.name !== "TimeoutError") throw new Error("The server does not answer.");
      throw new Error(`No answer in ${ACTION_LIMIT_MS / 1000} s. Look at the job before you press again: it may have been started.`);
    });
    const found = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(found.detail || `The server answered with status ${answer.status}.`);
    return found;
  };
  const say = (text, lines = [], href = null, kind = "") => {
    const box = at("ask-answer");
    box.className = kind;
    box.replaceChildren();
    const paragraph = document.createElement("p");
    paragraph.textContent = text;
    box.append(paragraph);
    if (lines.length) {
      const list = document.createElement("ul");
      for (const line of lines) list.appendChild(document.createElement("li")).textContent = line;
      box.append(list);
    }
    if (href) {
      const link = document.createElement("a");
      link.href = href;
      link.target = "_top";
      link.textContent = "See its progress";
      box.append(link);
    }
  };
  const wantsReason = (action) => action === "abort";

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-action]");
    if (!button) return;
    const mine = (asked = { action: button.dataset.action, request: JSON.parse(button.dataset.request), opener: button.id });
    at("ask-title").textContent = button.dataset.title;
    at("ask-what").textContent = button.dataset.what;
    at("ask-confirm").textContent = button.textContent.trim().replace("…", "");
    at("ask-confirm").className = button.classList.contains("danger") ? "danger" : "primary";
    at("ask-confirm").disabled = true;
    at("ask-confirm").hidden = false;
    at("ask-cancel").textContent = "Cancel";
    at("ask-reason-field").hidden = !wantsReason(mine.action);
    at("ask-reason").value = "";
    say("Reading what would be done …");
    dialog.showModal();
    at("ask-cancel").focus();
    try {
      const found = await post(mine.action, { ...mine.request, dry_run: true });
      if (asked !== mine) return;
      say(found.text, found.lines || []);
      at("ask-confirm").disabled = false;
    } catch (error) {
      if (asked === mine) say(error.message, [], null, "error");
    }
  });
  at("ask-confirm").addEventListener("click", async () => {
    const mine = asked;
    at("ask-confirm").disabled = true;
    say("Starting …");
    try {
      const reason = wantsReason(mine.action) ? { reason: at("ask-reason").value } : {};
      const found = await post(mine.action, { ...mine.request, ...reason, dry_run: false });
      say(found.text, found.lines || [], found.href, "done");
      at("ask-confirm").hidden = true;
      at("ask-reason-field").hidden = true;
      at("ask-cancel").textContent = "Close";
      at("ask-cancel").focus();
      if (refresh) update();
    } catch (error) {
      say(error.message, [], null, "error");
      at("ask-confirm").disabled = false;
    }
  });
  dialog.addEventListener("close", () => {
    const opener = asked && document.getElementById(asked.opener);
    asked = null;
    (opener || document.getElementById("content")).focus({ preventScroll: true });
  });
})();
