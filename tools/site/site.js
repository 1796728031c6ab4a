// The switch of light and dark, the search, and what printing needs. Pages can be read without it.
const root = document.currentScript.dataset.root;
const html = document.documentElement;

document.querySelector(".theme").onclick = () => {
  const dark = html.dataset.theme ? html.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  html.dataset.theme = dark ? "light" : "dark";
  try { localStorage.theme = html.dataset.theme; } catch { /* kept for this page only */ }
};

const contents = document.querySelector(".contents");
const wide = matchMedia("(min-width: 62rem)");
const fit = () => { contents.open = wide.matches; };
wide.onchange = fit;
fit();
contents.querySelector(".here")?.scrollIntoView({ block: "nearest" });
scrollTo(0, location.hash ? scrollY : 0);

let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("main details:not([open])")];
  closed.forEach((one) => { one.open = true; });
});
addEventListener("afterprint", () => closed.forEach((one) => { one.open = false; }));

const field = document.querySelector(".search input");
const list = document.querySelector(".search ol");
let index;

function load() { // a script and no fetch, so that it works from a folder on disk too
  index ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = root + "_static/index.js";
    script.onload = () => done(window.courseIndex);
    script.onerror = failed;
    document.head.append(script);
  });
  return index;
}

function find(sections, words) {
  const found = [];
  for (const [url, page, heading, text] of sections) {
    const title = `${page} ${heading}`.toLowerCase(), body = text.toLowerCase();
    if (!words.every((word) => title.includes(word) || body.includes(word))) continue;
    const score = words.reduce((sum, word) => sum + (title.includes(word) ? 10 : 0) + Math.min(body.split(word).length - 1, 5), 0);
    const at = Math.max(0, body.indexOf(words.find((word) => body.includes(word)) ?? "") - 40);
    found.push([score, url, page, heading, (at ? "…" : "") + text.slice(at, at + 130)]);
  }
  return found.sort((a, b) => b[0] - a[0]).slice(0, 12);
}

field.onfocus = load;
field.oninput = async () => {
  const words = field.value.toLowerCase().split(/\s+/).filter((word) => word.length > 1);
  const hits = words.length ? find(await load(), words) : [];
  list.replaceChildren(...hits.map(([, url, page, heading, text]) => {
    const item = document.createElement("li"), link = document.createElement("a"), more = document.createElement("small");
    link.href = root + url;
    link.textContent = heading && heading !== page ? `${page} › ${heading}` : page;
    more.textContent = text;
    item.append(link, more);
    return item;
  }));
  if (words.length && !hits.length) list.innerHTML = "<li><small>Nothing found.</small></li>";
  list.hidden = !words.length;
};
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(event.target.tagName)) { event.preventDefault(); field.focus(); }
  if (event.key === "Escape") { list.hidden = true; field.blur(); }
  if (event.key === "Enter" && event.target === field) list.querySelector("a")?.click();
});
addEventListener("click", (event) => { if (!event.target.closest(".search")) list.hidden = true; });
