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

const title = ({ needs_you: needing, empty_why: empty }) => {
  if (empty) return "no job is known";
  return needing === 0 ? "No job needs you" : `${needing >= 100 ? "100 or more" : needing} ${needing === 1 ? "job needs" : "jobs need"} you`;
};

function LockgateCard() {
  const { found, error } = useCounts();
  if (found === null && error === null) return null;
  const rows = found?.first.filter((job) => job.needs === "you").slice(0, SHOWN) ?? [];
  const needing = found?.needs_you ?? 0;
  // A job that needs a person is shown as Airflow shows its failed DAGs, and above them; an empty journal is no all-clear.
  const tone = needing ? { colorPalette: "red", variant: "solid", size: "lg" } : { colorPalette: found?.empty_why ? "gray" : "green" };
  const border = needing ? { borderWidth: 2, borderColor: "red.solid", order: 0 } : { borderWidth: 1, order: 3 };
  return h(
    Box,
    { as: "section", "aria-label": "Lockgate", borderRadius: 8, p: 3, ...border, "data-testid": "lockgate-card" },
    h(
      HStack,
      { gap: 3 },
      found !== null && h(Badge, { ...tone, "aria-hidden": true }, found.empty_why ? "–" : needing),
      h(
        Link,
        { href: framed(needing ? "jobs?needs=you" : "jobs"), color: "fg.info", fontWeight: "bold" },
        found === null ? "Lockgate" : `Lockgate: ${title(found)}`,
      ),
      found !== null && !found.empty_why && h(Text, { color: "fg.muted", fontSize: "sm" }, `${found.unended} not ended`),
    ),
    found?.recovery_stopped && h(Text, { color: "fg.error", fontSize: "sm" }, found.recovery_stopped),
    found?.empty_why && h(Text, { color: "fg.muted", fontSize: "sm" }, found.empty_why),
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
