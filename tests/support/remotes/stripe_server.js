// stripe-stateful-mock listens on every interface by itself; this serves the same app on loopback.
// usage: node stripe_server.js PACKAGE_FOLDER PORT.   DELETE /_fresh forgets everything, keys included.
const http = require("http");
const [folder, port] = process.argv.slice(2);

function fresh() {
  for (const file of Object.keys(require.cache)) {
    if (file.startsWith(folder)) delete require.cache[file];
  }
  return require(folder).createExpressApp();
}

let app = fresh();
http.createServer((request, response) => {
  if (request.method === "DELETE" && request.url === "/_fresh") {
    app = fresh();
    response.end();
  } else {
    app(request, response);
  }
}).listen(Number(port), "127.0.0.1");
