// Colours of classes: the built-in ones have theirs, others take what is left in the order in which they are seen.

const FIXED = { interactive: 'blue', standard: 'green', batch: 'violet', admin: 'amber' };
const SPARE = ['rose', 'slate'];
const given = new Map();

export function colourName(traffic) {
  if (!traffic) return 'slate';
  if (FIXED[traffic]) return FIXED[traffic];
  if (!given.has(traffic)) given.set(traffic, SPARE[Math.min(given.size, SPARE.length - 1)]);
  return given.get(traffic);
}

export const colour = (traffic) => getComputedStyle(document.documentElement).getPropertyValue(`--${colourName(traffic)}`).trim();
export const variable = (traffic) => `var(--${colourName(traffic)})`;
