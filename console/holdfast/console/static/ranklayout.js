/**
 * Where each rank stands on the map, in cells: a host is a row, a rack is a block of hosts, and blocks stand in
 * rows that fill the shape of the map. Pure.
 */

const HOSTS_ALONE = 64; // so few hosts stand apart, each under its own name
const HOSTS_PER_BLOCK = 16; // where nobody says which racks there are
const RANKS_PER_ROW = 16; // a host with more takes several rows

/**
 * `{width, height, x, y, at, blocks}`: `x` and `y` of each rank, `at[y * width + x]` the rank there or -1, `blocks`
 * `{rack, hosts, x, y, width, height}`, each host `{node, ranks, y}`.
 *
 * `racks` names the rack of each node, null where unknown. `room` is the map's width and height in cells of full size.
 */
export function layout(ranks, racks, room) {
  const blocks = blocksOf(hostsOf(ranks), racks);
  const column = 1 + Math.max(1, ...blocks.map((each) => each.width));
  const row = 2 + Math.max(1, ...blocks.map((each) => each.height));
  const across = perRow(blocks.length, column, row, room);
  blocks.forEach((each, i) => {
    each.x = (i % across) * column;
    each.y = 1 + Math.floor(i / across) * row;
  });
  const width = Math.max(1, Math.min(across, blocks.length) * column - 1);
  const height = Math.max(1, Math.ceil(blocks.length / across) * row - 1);
  return { width, height, blocks, ...placed(ranks.n, blocks, width, height) };
}

/** How many blocks stand beside each other: a full row where few rows do, else so that all have the map's shape. */
function perRow(count, column, row, { width, height }) {
  const full = Math.max(1, Math.floor((width + 1) / column));
  if (Math.ceil(count / full) * row <= height) return Math.min(Math.max(1, count), full);
  const wanted = Math.sqrt(((width / height) * count * row) / column);
  return Math.min(Math.max(1, count), Math.max(1, Math.round(wanted)));
}

function hostsOf({ n, node }) {
  const hosts = new Map();
  for (let rank = 0; rank < n; rank += 1) {
    const known = hosts.get(node[rank]);
    if (known) known.push(rank);
    else hosts.set(node[rank], [rank]);
  }
  return [...hosts].map(([name, ranks]) => ({ node: name, ranks })).sort((a, b) => a.node - b.node);
}

function blocksOf(hosts, racks) {
  if (hosts.length <= HOSTS_ALONE) return hosts.map((host) => block(racks[host.node] ?? null, [host]));
  const named = new Map();
  const unnamed = [];
  for (const host of hosts) {
    const rack = racks[host.node];
    if (rack == null || rack === "") unnamed.push(host);
    else if (named.has(rack)) named.get(rack).push(host);
    else named.set(rack, [host]);
  }
  const blocks = [...named].map(([rack, of]) => block(rack, of));
  for (let i = 0; i < unnamed.length; i += HOSTS_PER_BLOCK) {
    blocks.push(block(null, unnamed.slice(i, i + HOSTS_PER_BLOCK)));
  }
  return blocks;
}

function block(rack, hosts) {
  let height = 0;
  for (const host of hosts) {
    host.y = height;
    height += Math.ceil(host.ranks.length / RANKS_PER_ROW);
  }
  const longest = hosts.reduce((most, each) => Math.max(most, each.ranks.length), 1);
  return { rack, hosts, x: 0, y: 0, width: Math.min(RANKS_PER_ROW, longest), height };
}

function placed(n, blocks, width, height) {
  const x = new Int32Array(n);
  const y = new Int32Array(n);
  const at = new Int32Array(width * height).fill(-1);
  const blockOf = new Int32Array(n);
  blocks.forEach((each, b) => {
    for (const host of each.hosts) {
      host.ranks.forEach((rank, i) => {
        x[rank] = each.x + (i % RANKS_PER_ROW);
        y[rank] = each.y + host.y + Math.floor(i / RANKS_PER_ROW);
        at[y[rank] * width + x[rank]] = rank;
        blockOf[rank] = b;
      });
    }
  });
  return { x, y, at, blockOf };
}
