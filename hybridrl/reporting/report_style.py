"""The style sheet of report.html: light and dark, paper, and phones."""

CSS = """\
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#59636e;
--rule:#d8dee4;--card:#f6f8fa;--rollout:#2f7dd1;--train:#e0a100;
--weight_sync:#8a5bc7;--switching:#d2503c;--idle:#d5dae0;--c1:#2f7dd1;
--c2:#c77700;--c3:#8a5bc7;--c4:#1f8a5b}
@media (prefers-color-scheme:dark){:root{--bg:#14171c;--fg:#e4e8ed;
--soft:#9aa4b0;--rule:#343b44;--card:#1d2228;--rollout:#5aa2ee;--train:#e9b93c;
--weight_sync:#b08ae6;--switching:#ec7a66;--idle:#39414b;--c1:#5aa2ee;
--c2:#f0a33e;--c3:#b08ae6;--c4:#4fc08d}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1100px;padding:16px;background:var(--bg);
color:var(--fg);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.2em 0}h2{font-size:1.15rem;margin:2em 0 .6em}
.lead{font-size:1.1rem;border-left:4px solid var(--c1);padding-left:12px}
.soft,.none,small{color:var(--soft)}
.tiles,.charts{display:grid;gap:12px}
.tiles{grid-template-columns:repeat(auto-fit,minmax(150px,1fr))}
.charts{grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr))}
.tile,figure{background:var(--card);border:1px solid var(--rule);
border-radius:6px;padding:10px;margin:0;break-inside:avoid}
.tile b{display:block;font-size:1.3rem}
figcaption{font-weight:600;margin-bottom:4px}
figure svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font:11px system-ui,sans-serif}
.end{text-anchor:end}.mid{text-anchor:middle}
.grid{stroke:var(--rule);stroke-width:1}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}
.line.c4{stroke:var(--c4)}circle.c1{fill:var(--c1)}circle.c2{fill:var(--c2)}
circle.c3{fill:var(--c3)}circle.c4{fill:var(--c4)}
.legend{display:flex;flex-wrap:wrap;gap:4px 14px;font-weight:400;
font-size:.85rem}
.legend span{white-space:nowrap}
.legend i{display:inline-block;width:12px;height:12px;margin-right:5px;
border-radius:2px;vertical-align:-1px;print-color-adjust:exact;
-webkit-print-color-adjust:exact}
i.c1{background:var(--c1)}i.c2{background:var(--c2)}i.c3{background:var(--c3)}
i.c4{background:var(--c4)}i.rollout{background:var(--rollout)}
i.train{background:var(--train)}i.weight_sync{background:var(--weight_sync)}
i.switching{background:var(--switching)}i.idle{background:var(--idle)}
path.rollout{fill:var(--rollout)}path.train{fill:var(--train)}
path.weight_sync{fill:var(--weight_sync)}path.switching{fill:var(--switching)}
path.idle{fill:var(--idle)}
.lanes{display:grid;grid-template-columns:max-content 1fr;gap:4px 8px;
align-items:center;font-size:.85rem;margin-top:8px}
.lanes svg{width:100%;height:22px;display:block;border-radius:3px}
.axis{position:relative;height:1.4em;color:var(--soft)}
.axis span{position:absolute;transform:translateX(-50%);white-space:nowrap}
.axis span:first-child{transform:none}
.axis span:last-child{transform:translateX(-100%)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;overflow-wrap:normal;width:100%;font-size:.85rem;
font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid
var(--rule);vertical-align:top}
th{white-space:nowrap}td.n,th.n{text-align:right}
pre{white-space:pre-wrap;background:var(--card);padding:10px;font-size:.8rem}
summary{cursor:pointer}
@media print{body{max-width:none;font-size:11pt}
:root{color-scheme:light;--bg:#fff;--fg:#000;--soft:#444;--rule:#bbb;
--card:#fff;--rollout:#2f7dd1;--train:#e0a100;--weight_sync:#8a5bc7;
--switching:#d2503c;--idle:#d5dae0;--c1:#2f7dd1;--c2:#c77700;--c3:#8a5bc7;
--c4:#1f8a5b}.charts{grid-template-columns:1fr 1fr}
svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
