//! Scripted sessions with the server, in memory.

mod diagnostics;
mod editor;
mod edits;
mod features;
mod format;
mod text;
mod textmate;
mod words;
