//! Rank and size from the environment that a launcher sets.
//!
//! One family of variables is chosen whole: mixing a rank of one launcher with a size of another is how jobs started
//! inside other jobs go wrong.

/// A process's place in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Which launcher's variables were found.
    pub family: &'static str,
    /// This process.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
    /// This process among those of its host.
    pub local_rank: usize,
}

/// A launcher's variables: name, rank, size, local rank.
const FAMILIES: &[(&str, &str, &str, &str)] = &[
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("PMI", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK"),
    ("PMIx", "PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
];

/// The launcher that started this process; `None` without one.
///
/// # Errors
/// A family whose rank or size does not make sense, as a message.
pub fn detect(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Launch>, String> {
    for (family, rank, size, local_rank) in FAMILIES {
        let (Some(rank_text), Some(size_text)) = (variable(rank), variable(size)) else { continue };
        let number = |name: &str, text: &str| {
            text.trim().parse::<usize>().map_err(|_| format!("{family}: `{name}` is `{text}`, not a number"))
        };
        let (at, of) = (number(rank, &rank_text)?, number(size, &size_text)?);
        if at >= of {
            return Err(format!("{family}: rank {at} of {of} processes"));
        }
        let local_rank = match variable(local_rank) {
            Some(text) => number(local_rank, &text)?,
            None => at,
        };
        return Ok(Some(Launch { family, rank: at, size: of, local_rank }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<Launch>, String> {
        detect(|name| variables.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_family_is_taken_whole() {
        let mixed = [
            ("RANK", "1"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("WORLD_SIZE", "2"),
        ];
        let launch = Launch { family: "Open MPI", rank: 3, size: 4, local_rank: 3 };
        assert_eq!(found(&mixed), Ok(Some(launch)));
        assert_eq!(found(&[("RANK", "1"), ("SLURM_NTASKS", "4")]), Ok(None));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(found(&[("RANK", "2"), ("WORLD_SIZE", "2")]).is_err());
        assert!(found(&[("RANK", "x"), ("WORLD_SIZE", "2")]).is_err());
    }
}
