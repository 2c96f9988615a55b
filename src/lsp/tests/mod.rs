//! Scripted sessions with the server, in memory.

mod diagnostics;
mod editor;
mod edits;
mod features;
mod textmate;
mod words;
