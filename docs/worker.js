// A browser starts no worker for a page that was opened from a disk. The script of the theme's search then runs in a
// hidden frame that takes and sends messages as a worker does: copies of them, later.
if (location.protocol === "file:") {
  const later = (deliver, data) => {
    const copy = structuredClone(data);
    setTimeout(() => deliver(new MessageEvent("message", { data: copy })));
  };
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => later((event) => this.onmessage?.(event), data);
      this.ready = new Promise((resolve) => {
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        inside.document.head.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => later((event) => this.frame.contentWindow?.dispatchEvent(event), data));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
