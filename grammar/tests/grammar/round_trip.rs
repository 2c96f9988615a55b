//! Property tests: for each program, canonical text is a fixed point and reads back without diagnostics.
//!
//! Programs are generated from the op table, so that new operators are covered. A list of numbers determines
//! all choices, and zero is used after its end, so that failing programs shrink to short ones.

use std::fmt::Write;

use proptest::prelude::*;

use grammar::{
    Dialect,
    attr::OperandKind,
    dtype::DType,
    ir::ParallelType,
    ops::{Arity, AsmFormat, OPS, Op, OpDef, OperandDef},
    print, print_as, read,
};

struct ProgramGenerator {
    choices: Vec<u32>,
    at: usize,
    /// The last statement number that was used.
    number: u32,
    /// Numbers that a Wait can refer to.
    posted: Vec<u32>,
    tensors: Vec<String>,
    axes: Vec<String>,
}

impl ProgramGenerator {
    fn new(choices: Vec<u32>) -> Self {
        let mut generator =
            Self { choices, at: 0, number: 0, posted: Vec::new(), tensors: Vec::new(), axes: Vec::new() };
        let mut axis = 0;
        for number in 0..6 {
            let text = generator.make_tensor(number, &mut axis);
            generator.tensors.push(text);
        }
        generator
    }

    /// Returns a number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        let choice = self.choices.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        choice as usize % bound.max(1)
    }

    fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }

    fn make_tensor(&mut self, number: usize, next_axis: &mut u32) -> String {
        let memory = self.pick(&["g", "l", "sym"]);
        let dtype = match self.below(8) {
            0 => self.pick(&[
                "float*",
                "Array<std::complex<float>,2,1>",
                "struct { Tensor<__half, 2, 2> x; int n; }*",
            ]),
            _ => DType::ALL[self.below(DType::ALL.len())].name(),
        };
        let mut axes: Vec<String> = Vec::new();
        for _ in 0..self.below(4) {
            *next_axis += 1 + self.below(3) as u32;
            let (word, _) = ParallelType::WORDS[self.below(ParallelType::WORDS.len())];
            let kind = self.pick(&["i", "i", "i", "r", "b", "?"]);
            let extent = self.inline(2);
            let extent = match self.below(6) {
                0 => format!("{extent} ex 7"),
                1 => format!("2 : {extent}"),
                _ => extent,
            };
            let suffix = self.pick(&["", "", "", "rf", "_p", "rf_c"]);
            axes.push(format!("{kind}{word}{next_axis}{{{extent}}}{suffix}"));
        }
        self.axes.extend(axes.iter().cloned());
        let mesh = self.pick(&["", " (DeviceMesh{0})", " (DeviceMesh{0 2 3})", " (DeviceMesh{{0 1}{2 3}})"]);
        format!("T{number}_{memory}_{dtype}[{}]{mesh}", axes.join(", "))
    }

    /// Generates a fully parenthesised scalar expression.
    fn inline(&mut self, depth: usize) -> String {
        match self.below(if depth == 0 { 4 } else { 8 }) {
            0 => self.below(100).to_string(),
            1 => format!("i{}", self.below(5)),
            2 => self.pick(&["rank", "streamIdx", "numberOfStreams"]).to_owned(),
            3 => self.pick(&["true", "-1", "float(0)", "double(-inf)", "__bfloat(1.5)"]).to_owned(),
            4 | 5 => {
                let sign = self.pick(&["+", "-", "*", "/", "%", "==", "<", ">=", "&&", "<<", "|"]);
                format!("( {} {sign} {} )", self.inline(depth - 1), self.inline(depth - 1))
            }
            6 => {
                let name = self.pick(&["ceilDiv", "max", "gcd"]);
                format!("( {name}({}, {}) )", self.inline(depth - 1), self.inline(depth - 1))
            }
            _ => format!("( -{} )", self.inline(depth - 1)),
        }
    }

    fn tensor(&mut self) -> String {
        let at = self.below(self.tensors.len());
        self.tensors[at].clone()
    }

    fn argument(&mut self, param: &OperandDef) -> String {
        match param.kind {
            OperandKind::Tensor => self.tensor(),
            OperandKind::Value => match self.below(3) {
                0 => self.inline(1),
                _ => self.tensor(),
            },
            OperandKind::Scalar => self.inline(2),
            OperandKind::Stream => match self.below(2) {
                0 => "Stream s0".to_owned(),
                _ => format!("Stream ( {} )", self.inline(1)),
            },
            OperandKind::Axis => {
                if self.axes.is_empty() {
                    "iS99{4}".to_owned()
                } else {
                    let at = self.below(self.axes.len());
                    self.axes[at].clone()
                }
            }
            OperandKind::Word(words) => words[self.below(words.len())].text().to_owned(),
            OperandKind::Name => self.pick(&["left", "two_words"]).to_owned(),
            OperandKind::DType => DType::ALL[self.below(DType::ALL.len())].to_string(),
            OperandKind::Bool => self.pick(&["true", "false"]).to_owned(),
            OperandKind::Bytes => self.pick(&["0x", "0x00FF80"]).to_owned(),
            OperandKind::Team => self.pick(&["(0)", "(0 1)", "(2 0 3)"]).to_owned(),
            OperandKind::Flags => self.pick(&["{true}", "{true, false}", "{}"]).to_owned(),
            OperandKind::Scalars => format!("{{{}, {}}}", self.inline(1), self.inline(1)),
            OperandKind::Ranges => format!("{{ {{0, {}, 1}} {{i1, i2, 1}} }}", self.inline(1)),
            OperandKind::Values => format!("{{{}, {}, }}", self.tensor(), self.tensor()),
            OperandKind::Unit => "HostUnit7".to_owned(),
            OperandKind::Work => {
                let at = self.below(self.posted.len());
                format!("Communication {}", self.posted.get(at).copied().unwrap_or(0))
            }
            OperandKind::Stmts => {
                let row = Op::P2PCommunication.def();
                format!("{}, {}", self.statement(row, 0), self.statement(row, 0))
            }
        }
    }

    fn arguments(&mut self, row: &OpDef, sign: &str) -> Vec<String> {
        let mut texts = Vec::new();
        for param in row.args {
            let times = match param.arity {
                Arity::One => 1,
                Arity::Optional => self.below(2),
                Arity::Many => 1 + self.below(3),
            };
            texts.extend((0..times).map(|_| self.argument(param)));
        }
        for param in row.attrs {
            if param.arity == Arity::One || self.below(2) == 1 {
                let value = self.argument(param);
                texts.push(format!("{}{sign}{value}", param.name));
            }
        }
        texts
    }

    /// Generates one statement of an operator, not necessarily in canonical form.
    fn statement(&mut self, row: &OpDef, indent: usize) -> String {
        let pad = " ".repeat(indent);
        let mut text = String::new();
        let outs: Vec<String> = row
            .outs
            .iter()
            .map(|param| match param.kind {
                OperandKind::Stream => "Stream s0".to_owned(),
                _ => self.tensor(),
            })
            .collect();
        if !outs.is_empty() {
            let join = self.pick(&[" = ", "\n   = "]).replace('\n', &format!("\n{pad}"));
            let _ = write!(text, "{}{join}", outs.join(", "));
        }
        let name = match row.op {
            Op::Cast => self.pick(&["__bfloat2float", "__to_float"]),
            _ => row.mnemonic,
        };
        self.number += 1;
        let number = self.number;
        let _ = match row.format {
            AsmFormat::Infix => {
                let args = self.arguments(row, "=");
                write!(text, "{}", args.join(&format!("\n{pad}   {name} ")))
            }
            AsmFormat::Prefix => write!(text, "{name}{}", self.tensor()),
            AsmFormat::Call
            | AsmFormat::Statement
            | AsmFormat::Padded
            | AsmFormat::Wrapped
            | AsmFormat::Function => {
                let sign = self.pick(&["=", " = "]);
                let args = self.arguments(row, sign);
                let semicolon = if row.format == AsmFormat::Function { ";" } else { "" };
                write!(text, "{name}( {} ){semicolon}", args.join(", "))
            }
            AsmFormat::Numbered => {
                self.posted.push(number);
                let args = self.arguments(row, "=");
                write!(text, "{name} {number} ({})", args.join(", "))
            }
            AsmFormat::Bare => {
                let _ = write!(text, "{name}");
                match row.op {
                    Op::EndCoalescing => {
                        self.posted.push(number);
                        write!(text, " {number}")
                    }
                    _ => Ok(()),
                }
            }
            AsmFormat::Block => write!(text, "{name} {{\n{pad}  {}\n{pad}}}", self.tensor()),
            AsmFormat::Post => {
                let args = self.arguments(row, ":");
                write!(text, "{name} ({})", args.join(", "))
            }
            AsmFormat::Launch => {
                let args = self.arguments(row, ": ");
                write!(text, "{name}(\n{pad}  {},\n{pad})", args.join(&format!(",\n{pad}  ")))
            }
        };
        if matches!(row.format, AsmFormat::Infix | AsmFormat::Prefix) {
            text.push(';');
        }
        text
    }

    fn block(&mut self, depth: usize, out: &mut String) {
        let indent = 2 * depth;
        for _ in 0..1 + self.below(4) {
            let pad = " ".repeat(indent);
            match self.below(if depth < 4 { 12 } else { 9 }) {
                9 => {
                    let axis = format!("istreamIdx{}{{{}}}", 900 + self.below(9), self.inline(1));
                    let _ = writeln!(out, "{pad}FOR streamIdx in {axis}:");
                    self.block(depth + 1, out);
                }
                10 => {
                    let (start, stop) = (self.inline(1), self.inline(1));
                    let _ = writeln!(out, "{pad}FOR i{} from {start} to {stop}:", self.below(5));
                    self.block(depth + 1, out);
                }
                11 => {
                    let _ = writeln!(out, "{pad}IF Manual ( rank == {} ):", self.inline(1));
                    self.block(depth + 1, out);
                    if self.below(2) == 1 {
                        let _ = writeln!(out, "{pad}ELSE:");
                        self.block(depth + 1, out);
                    }
                }
                8 => {
                    let _ = writeln!(out, "{pad}i{} = i1 + {};", self.below(5), self.inline(2));
                }
                _ => {
                    let row = &OPS[self.below(OPS.len())];
                    let text = self.statement(row, indent);
                    let _ = writeln!(out, "{pad}{text}");
                }
            }
        }
    }

    fn program(mut self) -> String {
        let mut out = String::new();
        if self.below(3) == 0 {
            let _ = writeln!(out, "%options numberOfStreams={}", 1 + self.below(8));
        }
        let (input, output) = (self.tensor(), self.tensor());
        let _ =
            writeln!(out, "%HostIrContainer {{ ({input}) -> ({output}) :\n  Stream s0 = GetCurrentStream()");
        self.block(1, &mut out);
        out.push_str("\nHostUnit7: Inputs={T0_g_float[iS0{4}], } -> Outputs={T1_g_float[iS1{4}], }");
        if self.below(2) == 0 {
            out.push_str("Inputs:\n  T0_g_float[iS0{4}]\nOutputs:\n  T1_g_float[iS1{4}]\n");
        }
        out.push_str(
            "\n%kernel {\nT1_g_float[iS1{4}]\n   = relu(T0_g_float[iS0{4}]);\n} // %kernel\n} // %HostIrContainer\n",
        );
        if self.below(2) == 0 {
            let value = self.inline(2);
            let _ = writeln!(out, "\nIndex definitions:\n  i77 = i78 % 8;\n  i78 = rank + {value};");
        }
        out
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn canonical_text_is_a_fixed_point(choices in proptest::collection::vec(any::<u32>(), 0..300)) {
        let text = ProgramGenerator::new(choices).program();
        let (programs, diagnostics) = read(&text);
        prop_assert!(!grammar::diagnostic::has_errors(&diagnostics), "{text}\n{diagnostics:#?}");
        let first: Vec<String> = programs.iter().map(print).collect();
        let (again, diagnostics) = read(&first.concat());
        prop_assert!(diagnostics.is_empty(), "{}\n{diagnostics:#?}", first.concat());
        let second: Vec<String> = again.iter().map(print).collect();
        prop_assert_eq!(&first, &second);
        let short: String = programs.iter().map(|it| print_as(it, Dialect::Short).0).collect();
        let (again, diagnostics) = read(&short);
        prop_assert!(diagnostics.is_empty(), "{short}\n{diagnostics:#?}");
        let second: Vec<String> = again.iter().map(print).collect();
        prop_assert_eq!(first, second, "{}", short);
    }

    #[test]
    fn text_behind_a_misplaced_brace_is_reported(
        choices in proptest::collection::vec(any::<u32>(), 0..100),
        line: proptest::sample::Index,
    ) {
        let text: String = read(&ProgramGenerator::new(choices).program()).0.iter().map(print).collect();
        let closer = text.lines().position(|it| it == "} // %HostIrContainer").unwrap_or(0);
        let header = text.lines().position(|it| it.starts_with("%HostIrContainer")).unwrap_or(0);
        // A brace before that of the HostUnit only exchanges the two.
        let end = text.lines().position(|it| it.starts_with("HostUnit")).unwrap_or(closer);
        let mut lines: Vec<&str> = text.lines().collect();
        lines.remove(closer);
        lines.insert(header + 1 + line.index(end - header), "}");
        let text = lines.join("\n");
        prop_assert!(!read(&text).1.is_empty(), "{text}");
    }

    #[test]
    fn what_2025_cannot_say_is_named(choices in proptest::collection::vec(any::<u32>(), 100..300)) {
        for mut program in read(&ProgramGenerator::new(choices).program()).0 {
            // Each option that is lost is reported; these reports would hide others.
            program.options.clear();
            let (text, losses) = print_as(&program, Dialect::Y2025);
            let (again, diagnostics) = read(&text);
            prop_assert!(!grammar::diagnostic::has_errors(&diagnostics), "{text}\n{diagnostics:#?}");
            let vague = losses.iter().find(|it| it.message.contains("this program"));
            prop_assert!(vague.is_none(), "{}\n{text}", print(&program));
            if losses.is_empty() {
                prop_assert_eq!(again.iter().map(print).collect::<String>(), print(&program), "{}", text);
            }
        }
    }
}
