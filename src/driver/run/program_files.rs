//! The program files of a job: one for all ranks, or one for each rank.

use grammar::InvalidOption;
use hir_plan::limits::DEFAULT_MAX_RANKS;

/// The program files of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramFiles {
    /// All ranks run the same program.
    One(String),
    /// Rank `r` runs program `r`.
    PerRank(Vec<String>),
}

impl ProgramFiles {
    /// Returns the names of the files.
    pub fn paths(&self) -> &[String] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::PerRank(paths) => paths,
        }
    }
}

/// Parses the operand of `--program`: `0=a.hir,1=b.hir`.
impl std::str::FromStr for ProgramFiles {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        let mut ranks: Vec<Option<String>> = Vec::new();
        for item in text.split(',') {
            let usage = || format!("`{item}`: expected `RANK=FILE`, as in `0=a.hir,1=b.hir`");
            let (rank, path) = item.split_once('=').ok_or_else(usage)?;
            let rank: usize = rank.trim().parse().map_err(|_| usage())?;
            // `ranks` has an entry for each rank up to the largest one, so a limit bounds its memory.
            if rank >= DEFAULT_MAX_RANKS {
                return Err(format!(
                    "`{item}`: expected a rank below {DEFAULT_MAX_RANKS}, which `--max-ranks` does not change"
                )
                .into());
            }
            ranks.resize(ranks.len().max(rank + 1), None);
            if ranks[rank].replace(path.trim().to_owned()).is_some() {
                return Err(format!("rank {rank} has two programs").into());
            }
        }
        let missing = ranks.iter().position(Option::is_none);
        match missing {
            Some(rank) => Err(format!("rank {rank} has no program").into()),
            None => Ok(Self::PerRank(ranks.into_iter().flatten().collect())),
        }
    }
}
