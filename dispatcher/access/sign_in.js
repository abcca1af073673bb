// Signs in by a link: moves the one-time code from the address into the form and sends it. Browsers do not send the
// part of an address after `#`, so neither logs nor `Referer` contain the code, and link previews do not use it up.
"use strict";
(() => {
  const form = document.getElementById("sign-in");
  if (!form) return;
  const redeem = () => {
    const code = location.hash.slice(1);
    if (!/^[\w-]{43}$/.test(code)) return;
    history.replaceState(null, "", location.pathname + location.search);
    form.elements.namedItem("code").value = code;
    form.submit(); // unlike a click, does not require the token
  };
  addEventListener("hashchange", redeem); // a second link in the same tab does not load the page again
  redeem();
})();
