/* The curves as a file: what is on the screen, at twice its size, with the colours that it has there. */

const INKED = ["stroke", "fill", "stroke-width", "stroke-dasharray", "stroke-linecap", "opacity", "font-size",
  "font-family", "font-weight", "text-anchor", "paint-order"];

async function savePicture(plot, name) {
  const drawn = plot.querySelector("svg");
  if (!drawn) return;
  const { width, height } = drawn.viewBox.baseVal;
  const copy = drawn.cloneNode(true);
  const elements = [...drawn.querySelectorAll("*")];
  // A picture does not see the page's style, so each element takes its own along.
  copy.querySelectorAll("*").forEach((element, place) => {
    const style = getComputedStyle(elements[place]);
    for (const key of INKED) element.style.setProperty(key, style.getPropertyValue(key));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", 2 * width);
  copy.setAttribute("height", 2 * height);
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * width;
  canvas.height = 2 * height;
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0);
  const link = document.createElement("a");
  link.download = name;
  link.href = canvas.toDataURL("image/png");
  link.click();
}

/** Say that a table goes on to the right, as long as it does. */
function hintScroll(region) {
  const look = () =>
    region.classList.toggle("more", region.scrollLeft + region.clientWidth < region.scrollWidth - 2);
  region.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(region);
  look();
}
