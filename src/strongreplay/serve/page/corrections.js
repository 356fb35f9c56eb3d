"use strict";

// Right labels that a person gives to photos, saved as a list for: ser learn STATE --data corrections.csv

const corrections = new Map(); // file name -> label

function correctionField(name) {
  const field = make("input");
  field.type = "text";
  field.setAttribute("list", "labels");
  field.value = corrections.get(name) || "";
  field.addEventListener("change", () => {
    const label = field.value.trim();
    if (label) corrections.set(name, label);
    else corrections.delete(name);
    showCorrections();
  });
  return classed(make("label", "Right label ", field), "row");
}

function showLabels(labels) {
  const options = labels.map((label) => {
    const option = make("option");
    option.value = String(label);
    return option;
  });
  $("labels").replaceChildren(...options);
}

function showCorrections() {
  const count = corrections.size;
  $("corrections").hidden = count === 0;
  $("save").textContent = `Save ${count} right ${count === 1 ? "label" : "labels"} as corrections.csv`;
}

function saveCorrections() {
  const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
  const lines = [...corrections].map((pair) => pair.map(quoted).join(","));
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([["path,label", ...lines, ""].join("\n")], { type: "text/csv" }));
  link.download = "corrections.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

$("save").addEventListener("click", saveCorrections);
