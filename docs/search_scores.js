// Replaces the scores of Sphinx's search. Among names of the reference, those that the query fills
// most come first, before pages that only contain the words: "triplet" finds losses.TripletLoss.
"use strict";

var Scorer = {
  score: ([docname, title, anchor, description, score, file, kind]) => {
    if (kind !== "object") return score;
    const words = new URLSearchParams(window.location.search).get("q").toLowerCase().split(/\s+/);
    const parts = title.toLowerCase().split(".");
    const name = parts.at(-1);
    const matched = words.filter((word) => name.includes(word)).join("").length;
    // Methods have four parts or more.
    return matched ? 20 + (100 * matched) / name.length - 50 * Math.max(0, parts.length - 3) : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
