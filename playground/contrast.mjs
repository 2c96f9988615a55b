// Which texts of a page have too little contrast.

/** Returns the visible texts whose contrast with what is behind them is less than 4.5 (3 for large ones), as WCAG 2.1 measures it. Runs in the page. */
export function faint() {
  const parts = color => {
    const [red, green, blue, alpha = 1] = color.match(/[\d.]+/g).map(Number);
    return { rgb: [red, green, blue], alpha };
  };
  const luminance = rgb => {
    const [red, green, blue] = rgb.map(it => it / 255).map(it => it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  /** The colour behind an element: its backgrounds, the outermost first, over white. */
  const behind = element => {
    const all = [];
    for (let it = element; it; it = it.parentElement) all.unshift(parts(getComputedStyle(it).backgroundColor));
    return all.reduce((below, { rgb, alpha }) => below.map((it, at) => it * (1 - alpha) + rgb[at] * alpha), [255, 255, 255]);
  };
  const found = new Set();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const element = text.parentElement, style = getComputedStyle(element);
    // Texts of pictures have their own colours and places.
    if (!text.data.trim() || !element.checkVisibility() || element.closest("svg, option, datalist, style, script")) continue;
    const { rgb, alpha } = parts(style.color), below = behind(element);
    const [dark, light] = [luminance(below), luminance(rgb.map((it, at) => it * alpha + below[at] * (1 - alpha)))].sort((a, b) => a - b);
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || size >= 18.66 && style.fontWeight >= 700;
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < (isLarge ? 3 : 4.5)) found.add(`${contrast.toFixed(2)}: ${text.data.trim().slice(0, 40)}`);
  }
  return [...found];
}
