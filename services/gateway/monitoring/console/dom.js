// Small helpers for elements and numbers.

export const $ = (id) => document.getElementById(id);

export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === 'class') node.className = value;
    else if (key === 'chip') node.style.setProperty('--chip', value);
    else if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key === 'width') node.style.width = value;
    else if (key === 'left') node.style.left = value;
    else node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.filter((each) => each !== null && each !== undefined));
  return node;
}

export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'fill') node.style.fill = value; else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

export function ms(value) {
  if (value === null || value === undefined) return '–';
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  if (value < 10_000) return `${(value / 1000).toFixed(2)} s`;
  return value < 120_000 ? `${(value / 1000).toFixed(1)} s` : `${Math.round(value / 60_000)} min`;
}

export const count = (value) => Math.round(value).toLocaleString('en');
export const percent = (part) => `${(100 * part).toFixed(part < 0.0995 && part > 0 ? 1 : 0)} %`;
export const bytes = (value) => (value < 1e9 ? `${Math.round(value / 1048576)} MiB` : `${(value / 1073741824).toFixed(1)} GiB`);
export const seconds = (value) => (value < 90 ? `${Math.round(value)} s` : value < 5400 ? `${Math.round(value / 60)} min` : value < 172_800 ? `${(value / 3600).toFixed(1)} h` : `${Math.round(value / 86_400)} d`);
