(function () {
  "use strict";
  var root = document.documentElement;
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var button = document.getElementById("theme");
  function kept(value) {
    try {
      if (value === undefined) { return localStorage.getItem("limbeck-theme"); }
      localStorage.setItem("limbeck-theme", value);
    } catch (error) { return null; }
  }
  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
  }
  function told() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", "Switch to " + (isDark() ? "light" : "dark") + " colours");
  }
  var before = kept();
  if (before === "dark" || before === "light") { root.dataset.theme = before; }
  button.hidden = false;
  button.addEventListener("click", function () {
    root.dataset.theme = isDark() ? "light" : "dark";
    kept(root.dataset.theme);
    told();
  });
  dark.addEventListener("change", told);
  told();

  document.querySelectorAll("table.sortable").forEach(function (table) {
    var body = table.tBodies[0];
    var heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, place) {
      var sorter = document.createElement("button");
      sorter.type = "button";
      sorter.textContent = head.textContent.trim();
      head.textContent = "";
      head.appendChild(sorter);
      sorter.addEventListener("click", function () {
        var down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        var rows = Array.from(body.rows);
        var cells = rows.map(function (row) { return row.cells[place]; });
        var numbers = cells.every(function (cell) {
          return cell.dataset.value !== undefined || cell.textContent.trim() === "";
        });
        function compare(a, b) {
          var one = a.cells[place], two = b.cells[place];
          if (!numbers) {
            return one.textContent.localeCompare(two.textContent, undefined, { numeric: true });
          }
          var x = one.dataset.value, y = two.dataset.value;
          if (x === undefined || y === undefined) { return x === y ? 0 : x === undefined ? 1 : -1; }
          return x - y;
        }
        rows.sort(function (a, b) { return down ? compare(b, a) : compare(a, b); });
        rows.forEach(function (row) { body.appendChild(row); });
      });
    });
  });

  document.querySelectorAll(".code").forEach(function (box) {
    if (!navigator.clipboard) { return; }
    var copy = document.createElement("button");
    copy.type = "button";
    copy.textContent = "Copy";
    copy.addEventListener("click", function () {
      navigator.clipboard.writeText(box.querySelector("code").textContent).then(
        function () { copy.textContent = "Copied"; },
        function () { copy.textContent = "Select and copy"; }
      );
    });
    box.appendChild(copy);
  });
})();
