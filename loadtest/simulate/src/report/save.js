// In the page of a report: a button below each figure that saves it as PNG, as it is seen, two pixels for one.
for (const figure of document.querySelectorAll("figure")) {
  const button = document.createElement("button");
  button.textContent = "save as PNG";
  button.onclick = () => {
    const drawn = figure.querySelector("svg").cloneNode(true), { width, height } = drawn.viewBox.baseVal;
    const style = document.createElementNS(drawn.namespaceURI, "style"), image = new Image();
    style.textContent = document.getElementById("colours").textContent;
    drawn.prepend(style);
    drawn.setAttribute("width", width);
    drawn.setAttribute("height", height);
    image.onload = () => {
      const canvas = document.createElement("canvas"), link = document.createElement("a");
      [canvas.width, canvas.height] = [2 * width, 2 * height];
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      [link.href, link.download] = [canvas.toDataURL(), figure.id + ".png"];
      link.click();
    };
    image.src = "data:image/svg+xml," + encodeURIComponent(new XMLSerializer().serializeToString(drawn));
  };
  figure.append(button);
}
