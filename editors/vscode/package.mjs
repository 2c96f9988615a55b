// Packages the extension: `node package.mjs` writes `hir-VERSION.vsix`, a zip file with a manifest, as `vsce package` does. `vsce` has 200
// packages below it, most of which are for publishing.

import { createWriteStream, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { buildSync } from "esbuild";
import { ZipFile } from "yazl";

const here = name => fileURLToPath(new URL(name, import.meta.url));
const manifest = JSON.parse(readFileSync(here("package.json"), "utf8"));
const grammars = manifest.contributes.grammars.map(it => it.path), languages = manifest.contributes.languages.map(it => it.configuration);
const files = ["package.json", "README.md", manifest.main, ...grammars, ...languages].map(it => it.replace("./", ""));

buildSync({
  entryPoints: [here("src/extension.ts")], outfile: here(manifest.main), bundle: true, minify: true, platform: "node", format: "cjs", target: "node20",
  external: ["vscode"],
});

const escaped = text => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
const { name, version, publisher, displayName, description, engines, categories } = manifest;
const description_file = `<?xml version="1.0" encoding="utf-8"?>
<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">
  <Metadata>
    <Identity Language="en-US" Id="${name}" Version="${version}" Publisher="${publisher}"/>
    <DisplayName>${escaped(displayName)}</DisplayName>
    <Description xml:space="preserve">${escaped(description)}</Description>
    <Categories>${categories.join(",")}</Categories>
    <Properties>
      <Property Id="Microsoft.VisualStudio.Code.Engine" Value="${engines.vscode}"/>
      <Property Id="Microsoft.VisualStudio.Code.ExtensionKind" Value="workspace"/>
    </Properties>
  </Metadata>
  <Installation><InstallationTarget Id="Microsoft.VisualStudio.Code"/></Installation>
  <Dependencies/>
  <Assets>
    <Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json" Addressable="true"/>
    <Asset Type="Microsoft.VisualStudio.Services.Content.Details" Path="extension/README.md" Addressable="true"/>
  </Assets>
</PackageManifest>
`;
const types = { js: "application/javascript", json: "application/json", md: "text/markdown", vsixmanifest: "text/xml" };
const type = ([extension, it]) => `<Default Extension=".${extension}" ContentType="${it}"/>`;
const content_types = `<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">${Object.entries(types).map(type).join("")}</Types>
`;

const zip = new ZipFile();
zip.addBuffer(Buffer.from(content_types), "[Content_Types].xml");
zip.addBuffer(Buffer.from(description_file), "extension.vsixmanifest");
for (const it of files) zip.addFile(here(it), `extension/${it}`);
zip.end();
zip.outputStream.pipe(createWriteStream(here(`${name}-${version}.vsix`)));
