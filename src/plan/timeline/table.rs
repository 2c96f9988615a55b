//! The times of one kind of work, by extents, and those of other extents, which are interpolated.
//!
//! Rule of `Table::near`, for products and attentions: libraries choose an algorithm for each shape, so the time is no smooth function of the
//! extents, and no grid has all of them. What interpolates is the time relative to that of the nominal GPU: its logarithm is the mean of those
//! of the nearest measured shapes, weighted by 1 / distance³; the distance is that of the logarithms of the extents.
//! (Left out one by one, the 464 products of `h200` that are in no grid have a median error of 2.2%, nine of ten are within 9%;
//! interpolated linearly on the grid, 4.2% and 24%.)
//!
//! Rules of `Table::along`, for work with one extent:
//! * between two measured extents, the logarithm of the time is linear in the logarithm of the extent;
//! * below the smallest one, the time is that of the smallest one, because a launch or the latency of a link determines it;
//! * above the largest one, the time grows in proportion to the extent.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::{
    cost::{nominal_attention, nominal_product},
    work::{Contention, Work, WorkClass},
};

/// The times of one kind of work. Points are in the order of their extents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Table(pub Vec<Point>);

/// A measured time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// The extents (`Work::extents`).
    pub at: Vec<f64>,
    /// The median in microseconds.
    pub us: f64,
    /// The least time in microseconds.
    pub least: f64,
}

impl Table {
    /// Returns the time of work; `None` without points, or if they have another number of extents.
    pub fn microseconds(&self, work: &Work) -> Option<f64> {
        let Self(points) = self;
        points.first().filter(|it| it.at.len() == work.extents.len())?;
        let nominal = match work.kind.class() {
            WorkClass::Attention => nominal_attention,
            _ => nominal_product,
        };
        // Copy engines have two times, from program to program one or the other in most of the runs. The shorter one is in the table of a
        // copy, and what is added between kernels (`exchange_us`) is that of the median in addition to it.
        let is_copy = work.contention() == Some(Contention::Copy);
        let time = if is_copy { |it: &Point| it.least } else { |it: &Point| it.us };
        let between = || match work.extents.as_slice() {
            [extent] => self.along(*extent, time),
            extents => self.near(extents, nominal),
        };
        Some(self.exactly(&work.extents).map(time).unwrap_or_else(between))
    }

    /// Returns the time that was measured for these extents.
    pub(super) fn exactly(&self, extents: &[f64]) -> Option<&Point> {
        let Self(points) = self;
        let it =
            points.binary_search_by(|it| it.at.as_slice().partial_cmp(extents).unwrap_or(Ordering::Less));
        it.ok().map(|it| &points[it])
    }

    /// Returns the time at an extent.
    fn along(&self, extent: f64, time: fn(&Point) -> f64) -> f64 {
        let Self(points) = self;
        let (first, last) = (&points[0], &points[points.len() - 1]);
        if extent > last.at[0] {
            return time(last) * extent / last.at[0];
        }
        let logarithms = |it: &Point| [it.at[0].ln(), time(it).ln()];
        interpolated(points, extent.ln(), logarithms).map_or(time(first), f64::exp)
    }

    /// Returns the time of a shape from those of the nearest ones.
    fn near(&self, extents: &[f64], nominal: fn(&[f64]) -> f64) -> f64 {
        let points = self.0.iter().map(|it| (it.at.as_slice(), it.us / nominal(&it.at)));
        of_nearest(points, extents).map_or(0.0, f64::exp) * nominal(extents)
    }
}

/// Returns the mean of the logarithms of the values of the nearest shapes (`Table::near`).
pub(super) fn of_nearest<'a>(points: impl Iterator<Item = (&'a [f64], f64)>, extents: &[f64]) -> Option<f64> {
    /// Number of shapes that count.
    const NEAREST: usize = 8;
    let distance = |at: &[f64]| {
        let along = at.iter().zip(extents).map(|(at, wanted)| (at / wanted).ln().powi(2));
        along.sum::<f64>().sqrt().max(f64::EPSILON)
    };
    let mut near: Vec<(f64, f64)> = points.map(|(at, value)| (distance(at), value)).collect();
    near.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut weights) = (0.0, 0.0);
    for (distance, value) in near.into_iter().take(NEAREST) {
        let weight = distance.powi(-3);
        sum += weight * value.ln();
        weights += weight;
    }
    (weights > 0.0).then(|| sum / weights)
}

/// Returns the value at a position: between two points, it is linear, and that of the nearest point beyond them. `of` returns the
/// position and the value of a point; positions ascend.
pub(super) fn interpolated<T>(points: &[T], at: f64, of: impl Fn(&T) -> [f64; 2]) -> Option<f64> {
    let above = points.partition_point(|it| of(it)[0] < at);
    match (above.checked_sub(1).map(|it| of(&points[it])), points.get(above).map(&of)) {
        (Some([low, from]), Some([high, to])) => Some(from + (to - from) * (at - low) / (high - low)),
        (Some([_, nearest]), None) | (None, Some([_, nearest])) => Some(nearest),
        (None, None) => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::timeline::work::WorkKind;

    /// Returns a table in which both times of a point are equal.
    pub fn table(points: &[(&[f64], f64)]) -> Table {
        Table(points.iter().map(|it| Point { at: it.0.to_vec(), us: it.1, least: it.1 }).collect())
    }

    #[test]
    fn times_are_interpolated_by_the_stated_rules() {
        let bytes = table(&[(&[100.0], 2.0), (&[400.0], 8.0), (&[1600.0], 8.0)]);
        let time = |extent: f64| bytes.along(extent, |it| it.us);
        for (extent, wanted) in [(1.0, 2.0), (100.0, 2.0), (200.0, 4.0), (800.0, 8.0), (3200.0, 16.0)] {
            assert!((time(extent) - wanted).abs() < 1e-9, "{extent}: {}", time(extent));
        }
        let shapes = table(&[(&[64.0, 1024.0, 1024.0], 4.0), (&[4096.0, 4096.0, 4096.0], 220.0)]);
        assert!((shapes.near(&[64.0, 1024.0, 1024.0], nominal_product) - 4.0).abs() < 1e-9);
        // Next to a large product, half the depth takes half the time.
        let half = shapes.near(&[4096.0, 4096.0, 2048.0], nominal_product);
        assert!((100.0..120.0).contains(&half), "{half}");
        let work = Work { kind: WorkKind::Elementwise, extents: vec![1.0] };
        assert_eq!(shapes.microseconds(&work), None);
    }
}
