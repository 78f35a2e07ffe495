"use strict";
{
  const state = document.body.dataset.state;
  const reading = () => document.activeElement?.closest("form") || document.querySelector("details[open]");
  const follow = async () => {
    if (document.hidden || reading()) return;
    try {
      const answer = await fetch("/state");
      if (answer.ok && (await answer.text()) !== state) location.reload();
    } catch {
      // The server was stopped: the page stays as it is.
    }
  };
  if (location.protocol !== "file:") setInterval(follow, 2000);  // a saved page has no server
}
