// The card on Airflow's home page: how many jobs need a person, and the first of them.
//
// A module without a build step. It uses the React and the Chakra UI that Airflow's page offers as globals, so
// fonts, colours and the dark theme are Airflow's. React escapes every text.

const { createElement: h, useEffect, useState } = globalThis.React;
const { Badge, Box, HStack, Link, Text } = globalThis.ChakraUI;

const EVERY_MS = 30_000;
const LIMIT_MS = 20_000;
const SHOWN = 3;

// Airflow's page has a <base>: it is the path of `[api] base_url`.
const BASE = new URL(document.baseURI).pathname;
const framed = (page) => `${BASE}plugin/lockgate${BASE}lockgate/${page}`;
const jobPage = ({ destination, job_id }) =>
  framed(`job?destination=${encodeURIComponent(destination)}&job=${encodeURIComponent(job_id)}`);

async function counts(signal) {
  const answer = await fetch(`${BASE}lockgate/api/v1/jobs/counts`, {
    signal: AbortSignal.any([signal, AbortSignal.timeout(LIMIT_MS)]),
    headers: { accept: "application/json" },
  });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

function useCounts() {
  const [state, setState] = useState({ found: null, error: null });
  useEffect(() => {
    const stop = new AbortController();
    let timer;
    const ask = async () => {
      if (!document.hidden) {
        try {
          setState({ found: await counts(stop.signal), error: null });
        } catch (error) {
          if (stop.signal.aborted) return;
          setState(({ found }) => ({ found, error: error.message }));
        }
      }
      timer = setTimeout(ask, EVERY_MS);
    };
    ask();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, []);
  return state;
}

const title = (needing) =>
  needing === 0 ? "No job needs you" : `${needing >= 100 ? "100 or more" : needing} ${needing === 1 ? "job needs" : "jobs need"} you`;

function LockgateCard() {
  const { found, error } = useCounts();
  if (found === null && error === null) return null;
  const rows = found?.first.filter((job) => job.needs === "you").slice(0, SHOWN) ?? [];
  const needing = found?.needs_you ?? 0;
  return h(
    Box,
    { as: "section", "aria-label": "Lockgate", borderWidth: 1, borderRadius: 8, p: 3, order: 3, "data-testid": "lockgate-card" },
    h(
      HStack,
      { gap: 3 },
      found !== null && h(Badge, { colorPalette: needing ? "orange" : "green", "aria-hidden": true }, needing),
      h(
        Link,
        { href: framed(needing ? "jobs?needs=you" : "jobs"), color: "fg.info", fontWeight: "bold" },
        found === null ? "Lockgate" : `Lockgate: ${title(needing)}`,
      ),
      found !== null && h(Text, { color: "fg.muted", fontSize: "sm" }, `${found.unended} not ended`),
    ),
    error !== null && h(Text, { role: "status", color: "fg.muted", fontSize: "sm" }, `The newest numbers are not known: ${error}`),
    ...rows.map((job) =>
      h(
        Box,
        { key: `${job.destination}#${job.job_id}`, mt: 2, fontSize: "sm" },
        h(Link, { href: jobPage(job), color: "fg.info" }, job.name || job.job_id),
        h(Text, { color: "fg.muted" }, job.needs_why),
      ),
    ),
  );
}

// Airflow looks the component up by the name that the plugin gives it.
globalThis.LockgateCard = LockgateCard;
