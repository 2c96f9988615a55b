//! The transports, one file each, and their table.

mod one_shot;
mod push;
mod two_shot;
mod two_shot_copy;

use super::{CollectiveCall, Steps, Transport};
use crate::PacketFormat;
use one_shot::OneShot;
use push::{Push, PushSteps};
use two_shot::TwoShot;
use two_shot_copy::TwoShotCopy;

/// All transports.
pub(super) static TRANSPORTS: [&dyn Transport; 9] = [
    &OneShot::Default,
    &OneShot::CopyEngines,
    &OneShot::Kernel,
    &TwoShot,
    &TwoShotCopy,
    &Push(PushSteps::OneShot, PacketFormat::Ll),
    &Push(PushSteps::OneShot, PacketFormat::Ll128),
    &Push(PushSteps::TwoShot, PacketFormat::Ll),
    &Push(PushSteps::TwoShot, PacketFormat::Ll128),
];
