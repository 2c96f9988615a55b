//! The text of programs.

use std::{collections::BTreeMap, fmt::Write as _};

use super::program::{Item, Kind, Node, Place, Program, Role, Shape, Side, Stmt, Stream};

impl Program {
    /// Returns the text, and the first line of each item.
    pub fn text(&self) -> (String, BTreeMap<Place, usize>) {
        let mut text = String::new();
        let of = |role| (0..self.tensors.len()).filter(move |it| self.tensors[*it].1 == role);
        let (inputs, outputs) = (tensors(of(Role::Input)), tensors(of(Role::Output)));
        let _ = writeln!(
            text,
            "%HostIrContainer {{ ({inputs}) -> ({outputs}) :\n  Stream s0 = GetCurrentStream()"
        );
        let mut lines = BTreeMap::new();
        let mut current = Some(None);
        for (at, node) in self.nodes.iter().enumerate() {
            match node {
                Node::One(item) => {
                    lines.insert((at, None), self.write_item(&mut text, (item, at, 1), &mut current));
                }
                Node::Loop(count, body) => {
                    let _ = writeln!(text, "  FOR i{at} from 0 to {count}:");
                    current = None;
                    for (inner, item) in body.iter().enumerate() {
                        let line = self.write_item(&mut text, (item, at, 2), &mut current);
                        lines.insert((at, Some(inner)), line);
                    }
                    current = None;
                }
            }
        }
        if current != Some(None) {
            text += "  SetCurrentStream(Stream s0)\n";
        }
        let declared = self.declarations(&text);
        let first = declared.lines().count();
        lines.values_mut().for_each(|it| *it += first);
        (declared + &text + "} // %HostIrContainer\n", lines)
    }

    /// Returns the lines before the program: the tensors of its text.
    fn declarations(&self, of: &str) -> String {
        let mut text = "%options roots=team\n".to_owned();
        let mesh: Vec<String> = (0..self.ranks).map(|it| it.to_string()).collect();
        for (at, (shape, role)) in self.tensors.iter().enumerate() {
            let is_used = |end| of.contains(&format!("T{at}{end}"));
            if ![" ", ",", ")", "}", ";", "\n"].into_iter().any(is_used) {
                continue;
            }
            let axes = match shape {
                Shape::Part => format!("iS{}{{4}}", 2 * at),
                Shape::Wide => format!("iS{}{{{}}}, iS{}{{4}}", 2 * at, self.ranks, 2 * at + 1),
                Shape::Shard => format!("ideviceIdx.x{}{{{}}}, iS{}{{4}}", 2 * at, self.ranks, 2 * at + 1),
            };
            let memory = if *role == Role::Symmetric { "sym" } else { "g" };
            let _ = writeln!(text, "%tensor T{at}_{memory}_float[{axes}] (DeviceMesh{{{}}})", mesh.join(" "));
        }
        text
    }

    fn write_item(
        &self,
        text: &mut String,
        (item, index, level): (&Item, usize, usize),
        current: &mut Option<Stream>,
    ) -> usize {
        let mut indentation = "  ".repeat(level);
        if *current != Some(item.stream) {
            let _ = writeln!(text, "{indentation}SetCurrentStream({})", self.stream_text(item.stream, index));
            *current = Some(item.stream);
        }
        if item.ranks.count_ones() as usize != self.ranks {
            let ranks = (0..self.ranks).filter(|it| item.ranks >> it & 1 == 1);
            let all: Vec<String> = ranks.map(|it| format!("( rank == {it} )")).collect();
            let condition = match &all[..] {
                [] => "( rank < 0 )".to_owned(),
                [one] => one.clone(),
                [first, rest @ ..] => rest.iter().fold(first.clone(), |any, it| format!("( {any} || {it} )")),
            };
            let _ = writeln!(text, "{indentation}IF Manual {condition}:");
            indentation += "  ";
        }
        let line = text.lines().count() + 1;
        for it in self.statement_text(&item.stmt, index) {
            let _ = writeln!(text, "{indentation}{it}");
        }
        line
    }

    /// Returns whether a kernel whose code is not in the text computes tensors from others.
    pub fn is_opaque(&self, out: &[usize], from: &[usize]) -> bool {
        from.iter().any(|it| self.tensors[*it].0 != self.tensors[out[0]].0)
    }

    fn stream_text(&self, it: Stream, index: usize) -> String {
        format!("Stream {}", it.map_or_else(|| "s0".to_owned(), |it| it.text(index, self.ranks)))
    }

    fn statement_text(&self, stmt: &Stmt, index: usize) -> Vec<String> {
        let one = |it: String| vec![it];
        match stmt {
            Stmt::Sync(it) => one(format!("Synchronize({})", self.stream_text(*it, index))),
            Stmt::HostSync => one("Synchronize(host)".to_owned()),
            Stmt::Allocate { tensor, zero } => {
                let memory = if self.tensors[*tensor].1 == Role::Symmetric { "symmetric" } else { "global" };
                one(format!("T{tensor} = ALLOCATE(mem_type={memory}, zero_init={zero})"))
            }
            Stmt::Free(it) => one(format!("Deallocate {{ T{it} }}")),
            Stmt::Compute { out, from } => match (&out[..], &from[..]) {
                ([out], [from]) if !self.is_opaque(&[*out], &[*from]) => {
                    one(format!("T{out} = neg(T{from})"))
                }
                ([out], [one_of, other]) if !self.is_opaque(&[*out], from) => {
                    one(format!("T{out} = T{one_of} + T{other};"))
                }
                _ => one(format!(
                    "LaunchKernel( Group ID: 0, Inputs: {{{}}}, Outputs: {{{}}}, )",
                    tensors(from.iter().copied()),
                    tensors(out.iter().copied())
                )),
            },
            Stmt::Select { out, of, index: at } => one(format!(
                "T{out} = HirAliasSelect( T{of}, axis = iS{}{{{}}}, index = {} )",
                2 * of,
                self.ranks,
                at.text(index, self.ranks)
            )),
            Stmt::View { out, of } => one(format!("T{out} = SymmetricContiguousView(T{of})")),
            Stmt::Collective { number, kind, team, root, input, output } => {
                let team: Vec<String> = team.iter().map(usize::to_string).collect();
                let (count, team) = (team.len(), team.join(" "));
                if let Kind::CollectivePermute(by) = kind {
                    return one(format!(
                        "CollectivePermute {number} (team=({team}), send_peer=( ( rank + {by} ) % {count} ), recv_peer=( ( rank + {} ) % {count} ), input=T{input}, output=T{output}, backend=NCCL)",
                        count - by
                    ));
                }
                let root = if kind.has_root() { format!(", root={root}") } else { String::new() };
                let reduces = matches!(kind, Kind::Allreduce | Kind::ReduceScatter | Kind::Reduce);
                let op = if reduces { ", red_op=SUM" } else { "" };
                one(format!(
                    "Communication {number} (type={kind:?}, team=({team}){root}{op}, input=T{input}, output=T{output}, backend=NCCL)"
                ))
            }
            Stmt::Post(it) => one(self.side_text(it, index)),
            Stmt::Group { number, sides } => {
                let sides = sides.iter().map(|it| self.side_text(it, index));
                let first = ["StartCoalescing".to_owned()].into_iter();
                first.chain(sides).chain([format!("EndCoalescing {number}")]).collect()
            }
            Stmt::Share(sides) => {
                let sides: Vec<String> = sides.iter().map(|it| self.side_text(it, index)).collect();
                one(format!("ShareMemHandles({})", sides.join(", ")))
            }
            Stmt::Wait(number) => one(format!("Wait(Communication {number})")),
        }
    }

    fn side_text(&self, it: &Side, index: usize) -> String {
        let kind = if it.sends { "send" } else { "recv" };
        let backend = match it.puts {
            None => "NCCL",
            Some(false) => "CUDA, protocol=get",
            Some(true) => "CUDA, protocol=put",
        };
        let (number, buffer, peer) = (it.number, it.buffer, it.peer.text(index, self.ranks));
        format!("P2PCommunication {number} (type={kind}, buffer=T{buffer}, peer={peer}, backend={backend})")
    }
}

fn tensors(all: impl Iterator<Item = usize>) -> String {
    all.map(|it| format!("T{it}")).collect::<Vec<_>>().join(", ")
}
