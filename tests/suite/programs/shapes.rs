//! Generates meshes, shapes and shardings, and prints them.

use std::fmt::Write as _;

use super::{Builder, Tensor};
use crate::rng::Rng;

/// Devices in one or two dimensions. Empty for a tensor on every rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Mesh {
    /// Extents of the mesh, slowest dimension first.
    pub(super) shape: Vec<usize>,
    pub(super) devices: Vec<usize>,
}

pub(super) fn mesh(rng: &mut Rng) -> Mesh {
    let shapes: &[&[usize]] =
        &[&[2], &[2], &[3], &[4], &[5], &[6], &[1], &[2, 2], &[2, 3], &[3, 2], &[2, 2], &[1, 3], &[2, 1]];
    let shape = rng.choose_cloned(shapes).to_vec();
    let count: usize = shape.iter().product();
    let mut devices = rng.permutation(6);
    devices.truncate(count);
    if rng.chance(50) {
        devices = (0..count).collect();
    } else if rng.chance(60) {
        devices.sort_unstable();
    }
    Mesh { shape, devices }
}

impl Mesh {
    /// Returns the number of devices along `.x`, `.y`.
    pub(super) fn extents(&self) -> Vec<usize> {
        self.shape.iter().rev().copied().collect()
    }

    pub(super) fn text(&self) -> String {
        let row = |devices: &[usize]| {
            let devices: Vec<String> = devices.iter().map(usize::to_string).collect();
            format!("{{{}}}", devices.join(" "))
        };
        match self.shape[..] {
            [] => String::new(),
            [_] => format!(" (DeviceMesh{})", row(&self.devices)),
            [_, inner, ..] => {
                let rows: String = self.devices.chunks(inner).map(row).collect();
                format!(" (DeviceMesh{{{rows}}})")
            }
        }
    }
}

pub(super) const NAMES: [&str; 2] = ["deviceIdx.x", "deviceIdx.y"];
pub(super) const STREAM: &str = "streamIdx";

/// The axis that splits a dimension, and the number of parts.
pub(super) type DimSplit = (&'static str, usize);

/// The requirements on an axis of a tensor.
#[derive(Clone, Default)]
pub(super) struct AxisSpec {
    pub(super) extent: usize,
    /// `i`, `b` or `r`.
    pub(super) kind: char,
    /// The device axis over which this axis counts partial sums.
    pub(super) partial: Option<usize>,
    /// The position of its number among those of the tensor, for results of Permute.
    pub(super) number: Option<usize>,
}

pub(super) fn unpermuted_axes(extents: &[usize]) -> Vec<AxisSpec> {
    extents.iter().map(|extent| AxisSpec { extent: *extent, kind: 'i', ..AxisSpec::default() }).collect()
}

impl Builder {
    pub(super) fn extent(&mut self) -> usize {
        let devices: Vec<usize> = self.meshes[..2].iter().flat_map(Mesh::extents).chain([1]).collect();
        let (one, other) = (self.rng.choose_cloned(&devices), self.rng.choose_cloned(&devices));
        match self.rng.below(5) {
            0 => self.rng.choose_cloned(&[1, 2, 3, 5, 6, 7, 8]),
            1 => one,
            2 if one * other <= 12 => one * other,
            _ => one * self.rng.choose_cloned(&[1, 2, 3]),
        }
    }

    pub(super) fn extents(&mut self, ranks: &[usize]) -> Vec<usize> {
        let rank = self.rng.choose_cloned(ranks);
        (0..rank).map(|_| self.extent()).collect()
    }

    pub(super) fn axis(&mut self) -> usize {
        self.axes += 1;
        self.axes - 1
    }

    /// Adds a tensor with a random mesh and sharding.
    pub(super) fn tensor(&mut self, wants: &[AxisSpec], element: &'static str) -> usize {
        self.tensor_on_random_mesh(wants, element, false)
    }

    pub(super) fn tensor_on_random_mesh(
        &mut self,
        wants: &[AxisSpec],
        element: &'static str,
        is_input: bool,
    ) -> usize {
        let first = self.meshes[0].clone();
        let mut mesh = match self.rng.below(10) {
            0..=5 => first.clone(),
            6 | 7 => self.meshes[1].clone(),
            8 => self.meshes[2].clone(),
            _ => self.tensors.last().map_or(first.clone(), |it| it.mesh.clone()),
        };
        if mesh.shape.is_empty() {
            mesh = first;
        }
        if is_input && self.rng.chance(5) {
            mesh = Mesh::default();
        }
        let partial = wants.iter().find_map(|it| it.partial.map(|device| (device, it.extent)));
        if partial.is_some() {
            mesh = self.meshes[0].clone();
        }
        let devices = mesh.extents();
        // The axes that may split a dimension: every device axis that does not count partial sums and, for
        // some results, a stream.
        let mut cuts: Vec<DimSplit> = NAMES.into_iter().zip(devices.iter().copied()).collect();
        cuts.retain(|(name, _)| partial.is_none_or(|(taken, _)| NAMES[taken] != *name));
        let all = cuts.clone();
        if !is_input && self.rng.chance(12) {
            cuts.push((STREAM, self.rng.choose_cloned(&[2, 3, 4])));
        }
        let mut pieces: Vec<Vec<DimSplit>> = vec![Vec::new(); wants.len()];
        let mut rest: Vec<usize> = wants.iter().map(|it| it.extent).collect();
        for cut in self.rng.permutation(cuts.len()) {
            let (name, count) = cuts[cut];
            let fits = |at: &usize| {
                wants[*at].kind == 'i' && wants[*at].partial.is_none() && rest[*at].is_multiple_of(count)
            };
            let fits: Vec<usize> = (0..wants.len()).filter(fits).collect();
            if !fits.is_empty() && self.rng.chance(65) {
                let at = self.rng.choose_cloned(&fits);
                pieces[at].push((name, count));
                rest[at] /= count;
            }
        }
        let is_free = |cut: &&DimSplit| !pieces.iter().flatten().any(|it| it.0 == cut.0);
        let free: Vec<DimSplit> = all.iter().filter(is_free).copied().collect();
        for (at, want) in wants.iter().enumerate() {
            if want.kind == 'r' && partial.is_none() && self.rng.chance(40) {
                let fits = |it: &&DimSplit| want.extent.is_multiple_of(it.1);
                pieces[at].extend(free.iter().find(fits));
                break;
            }
        }
        self.tensor_text(wants, &pieces, &mesh, element)
    }

    pub(super) fn tensor_text(
        &mut self,
        wants: &[AxisSpec],
        pieces: &[Vec<DimSplit>],
        mesh: &Mesh,
        element: &'static str,
    ) -> usize {
        let first = self.axes;
        self.axes += wants.len();
        let unsharded: Vec<String> = wants
            .iter()
            .enumerate()
            .map(|(at, want)| {
                format!("{}S{}{{{}}}", want.kind, first + want.number.unwrap_or(at), want.extent)
            })
            .collect();
        let (mut logical, mut loops, mut splits) = (Vec::new(), Vec::new(), String::new());
        for (at, want) in wants.iter().enumerate() {
            let number = first + want.number.unwrap_or(at);
            let mut name = format!("{}S{number}{{{}}}", want.kind, want.extent);
            let mut rest = Some(want.extent);
            if let Some(device) = want.partial {
                name = format!("i{}{number}{{{}}}rf", NAMES[device], want.extent);
                loops.push((true, name.clone()));
                rest = None;
            }
            let mut whole = (pieces[at].is_empty() || want.partial.is_some()).then(|| name.clone());
            for (cut, count) in pieces[at].iter().copied() {
                let Some(extent) = rest else { break };
                if extent == count && self.rng.chance(70) {
                    // The whole axis is distributed over the devices.
                    let is_first = whole.is_none() && extent == want.extent;
                    let spelled = format!("{}{}", want.kind, cut);
                    let (number, old) = if is_first {
                        (number, name.clone())
                    } else {
                        (self.axes - 1, format!("{}S{}{{{extent}}}", want.kind, self.axes - 1))
                    };
                    let new = format!("{spelled}{number}{{{extent}}}");
                    if is_first {
                        whole = Some(new.clone());
                    } else {
                        splits = splits.replace(&old, &new);
                    }
                    loops.push((true, new));
                    rest = None;
                    break;
                }
                let input = if whole.is_none() {
                    name.clone()
                } else {
                    format!("{}S{}{{{extent}}}", want.kind, self.axes - 1)
                };
                whole.get_or_insert_with(|| name.clone());
                let (outer, inner) = (self.axis(), self.axis());
                let outer = format!("{}{}{outer}{{{count}}}", want.kind, cut);
                let _ = write!(
                    splits,
                    ", outer_split({input}, {count}) -> ({outer}, {}S{inner}{{{}}})",
                    want.kind,
                    extent / count
                );
                loops.push((true, outer));
                rest = Some(extent / count);
            }
            match (rest, pieces[at].is_empty()) {
                (Some(_), true) => loops.push((false, name.clone())),
                (Some(extent), false) => {
                    loops.push((false, format!("{}S{}{{{extent}}}", want.kind, self.axes - 1)));
                }
                (None, _) => (),
            }
            logical.push(whole.unwrap_or(name));
        }
        if self.rng.chance(50) {
            loops.sort_by_key(|(is_device, _)| !is_device);
        }
        let loops: Vec<String> = loops.into_iter().map(|(_, text)| text).collect();
        let number = self.tensors.len();
        let _ = writeln!(self.domains, "  T{number}: logical({}){splits}", logical.join(", "));
        let is_dimension = |(_, want): &(&String, &AxisSpec)| want.kind != 'r';
        let dimensions = |axes: &[String]| -> Vec<String> {
            axes.iter().zip(wants).filter(is_dimension).map(|(axis, _)| axis.clone()).collect()
        };
        self.tensors.push(Tensor {
            axes: dimensions(&logical),
            unsharded: format!("T{number}_g_{element}[{}]", unsharded.join(", ")),
            unsharded_axes: dimensions(&unsharded),
            text: format!("T{number}_g_{element}[{}]{}", loops.join(", "), mesh.text()),
            extents: wants.iter().filter(|it| it.kind != 'r').map(|it| it.extent).collect(),
            is_partial: wants.iter().any(|it| it.partial.is_some()),
            is_plain: wants.iter().all(|it| it.kind == 'i' && it.partial.is_none() && it.number.is_none()),
            is_shared: false,
            element,
            mesh: mesh.clone(),
        });
        number
    }

    pub(super) fn input(&mut self, extents: &[usize], element: &'static str) -> usize {
        let input = self.tensor_on_random_mesh(&unpermuted_axes(extents), element, true);
        self.inputs.push(input);
        input
    }

    /// Returns an existing or new tensor with these extents.
    pub(super) fn operand(&mut self, extents: &[usize], element: &'static str) -> usize {
        let fits = |at: &usize| {
            let it = &self.tensors[*at];
            it.extents == extents && it.element == element && !it.is_partial
        };
        let known: Vec<usize> = (0..self.tensors.len()).filter(fits).collect();
        if !known.is_empty() && !self.rng.chance(40) {
            self.rng.choose_cloned(&known)
        } else if self.rng.chance(35) {
            self.generated(extents, element)
        } else {
            self.input(extents, element)
        }
    }

    /// Returns a tensor with these extents that a statement has already written and that may be written
    /// again.
    pub(super) fn written(&mut self, extents: &[usize], element: &'static str) -> Option<usize> {
        let fits = |at: &usize| {
            let it = &self.tensors[*at];
            it.extents == extents && it.element == element && it.is_plain && !it.is_shared
        };
        let known: Vec<usize> = self.outputs.iter().copied().filter(fits).collect();
        (!known.is_empty() && self.rng.chance(8)).then(|| self.rng.choose_cloned(&known))
    }

    /// Returns the first operand of an operator: the latest tensor if it has one of these ranks, or a new
    /// one.
    pub(super) fn subject(&mut self, ranks: &[usize], takes_integers: bool) -> usize {
        let usable = |it: &Tensor| {
            ranks.contains(&it.extents.len())
                && !it.is_partial
                && it.element != "bool"
                && (takes_integers || it.element != "int64_t")
        };
        match self.tensors.last() {
            Some(last) if usable(last) && self.rng.chance(80) => self.tensors.len() - 1,
            _ => {
                let extents = self.extents(ranks);
                let element = if takes_integers { self.element } else { self.real() };
                if self.rng.chance(35) {
                    self.generated(&extents, element)
                } else {
                    self.input(&extents, element)
                }
            }
        }
    }

    /// Returns the element type if it is a float type, else `double`.
    pub(super) fn real(&self) -> &'static str {
        if self.element == "int64_t" { "double" } else { self.element }
    }
}
