//! The codes of all diagnostics, with the paragraph that `--explain` prints.
//!
//! Numbers are stable: E01xx reading, E02xx names and shapes, E03xx verification, E04xx planning, E05xx linking ranks,
//! E06xx pass pipelines, R06xx remarks of passes, E07xx checking, R07xx remarks of the checker, W07xx running; `lossy-…` warnings name what a dump leaves open.

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// The program is rejected.
    Error,
    /// The program is accepted, and the reader should know something.
    Warning,
    /// A pass reports what it did, or did not do, with a statement; or the checker reports what a program could do without.
    Remark,
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $code:ident = $text:literal, $severity:ident;)*) => {
        /// A diagnostic's code.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Code { $($(#[doc = $doc])+ $code,)* }

        impl Code {
            /// Every code, in order.
            pub const ALL: &'static [Code] = &[$(Code::$code),*];

            /// The code as it is printed.
            pub const fn text(self) -> &'static str {
                match self { $(Code::$code => $text,)* }
            }

            /// Error, warning or remark.
            pub const fn severity(self) -> Severity {
                match self { $(Code::$code => Severity::$severity,)* }
            }

            /// The paragraph behind `--explain`.
            pub const fn explanation(self) -> &'static str {
                match self { $(Code::$code => concat!($($doc, "\n"),+),)* }
            }
        }
    };
}

codes! {
    /// A character that begins no token of the language. Dumps contain printable ASCII outside comments; the usual
    /// cause is a paste that replaced quotes or blanks.
    BadToken = "E0101", Error;
    /// The text does not continue as the grammar wants. The label names what would have been accepted.
    Syntax = "E0102", Error;
    /// No `%HostIrContainer` was found. The text must hold one container; logs around it are fine.
    NoContainer = "E0103", Error;
    /// The text of a tensor cannot be read: `T<number>_<memory>[_<type>][<axes>] (DeviceMesh{…})`.
    BadTensor = "E0104", Error;
    /// The text ends inside a container, a statement or a bracket: part of the dump is missing.
    Truncated = "E0105", Error;
    /// Loops or branches without an indented body, where nothing tells how far the body reaches. Indentation is the
    /// only block structure of the language; paste the text with it.
    LostIndentation = "E0106", Error;
    /// A number that does not fit 64 bits.
    BadNumber = "E0107", Error;

    /// A statement whose name no operator of the table has. `hir-opt --list-ops` prints the table.
    UnknownOp = "E0201", Error;
    /// An operator has more, fewer or other operands than its row in the table.
    BadOperands = "E0202", Error;
    /// An attribute that the operator does not have, or that is missing.
    BadAttribute = "E0203", Error;
    /// A HostUnit is posted that no section of the text describes.
    UnknownUnit = "E0204", Error;
    /// A line of `Domains:` that does not describe its tensor: an unknown tensor or axis, transforms that do not lead from
    /// the logical to the loop domain or give an axis another extent; or two tensors of one number.
    BadDomain = "E0205", Error;
    /// Scalar definitions that depend on each other in a circle.
    CircularDefinition = "E0206", Error;

    /// A tensor is read before any statement gives it storage or a value.
    UndefinedTensor = "E0301", Error;
    /// A stream is used before GetCurrentStream captured it.
    UndefinedStream = "E0302", Error;
    /// The shapes of operands and result do not fit the operator's rule.
    ShapeMismatch = "E0303", Error;
    /// The element types of operands and result do not fit the operator's rule.
    TypeMismatch = "E0304", Error;
    /// A Wait names a communication that is not posted before it in scope.
    UnknownWork = "E0305", Error;
    /// A team is empty, or holds a rank twice, or is not the team that the tensors' meshes ask for.
    BadTeam = "E0306", Error;
    /// A tensor has more than one stream axis, or a device axis whose extent is not the mesh's.
    BadSharding = "E0307", Error;
    /// StartCoalescing and EndCoalescing do not pair up, or hold something else than P2PCommunications.
    BadCoalescing = "E0308", Error;
    /// A predicate that is not a boolean.
    BadPredicate = "E0309", Error;
    /// A communication's type needs a root, or has none.
    BadRoot = "E0310", Error;
    /// Symmetric memory where the statement cannot use it.
    BadMemory = "E0311", Error;
    /// A tensor is used after Deallocate dropped its name.
    UseAfterDeallocate = "E0312", Error;
    /// An ALLOCATE of a name that is bound already does nothing: the long form skips bound names.
    RedundantAllocate = "W0301", Warning;

    /// A scalar has no value: the dump uses it and never defines it. Give it with `--set name=value`, a number or an
    /// expression of `rank` and loop indices, or add its definition to the `Index definitions:` section. The last line of
    /// the report lists everything that is missing, with values that fit.
    UnboundSymbol = "E0401", Error;
    /// An extent, index, peer or team that makes no sense for this rank: out of range, negative, or not divisible.
    BadIndex = "E0402", Error;
    /// An operator that the plan has no instruction for, or a backend, algorithm or protocol that no executor has. It reads,
    /// checks and prints; it does not run.
    Unsupported = "E0403", Error;
    /// A program unrolls to more instructions than the limit.
    TooLong = "E0404", Error;
    /// A resharding under a predicate or index that depends on the rank: not all ranks would take part.
    DivergentReshard = "E0405", Error;
    /// CUDA transfers need a ShareMemHandles with the same number, buffer and peer before them.
    NotShared = "E0406", Error;
    /// The program's meshes name a rank that the world does not have.
    WorldTooSmall = "E0407", Error;
    /// Views of different shapes meet in one statement on this rank.
    RuntimeShape = "E0408", Error;
    /// A tensor, a world or a program unrolled on all ranks that is beyond what is planned: 2^40 elements a tensor, 65536
    /// ranks (`--max-ranks=N` allows more), 16 million instructions, 16 GiB of plans or of simulated memory
    /// (`--memory-limit=GIB` allows more). Usually a number is mistyped, or `--set` gives another symbol than was meant.
    TooLarge = "E0409", Error;
    /// The two sides of a transfer, or the members of a collective, disagree on size, type or root.
    Disagreement = "E0501", Error;
    /// What E0501 refuses when the program runs, found without running it: if all ranks run this program, two sides of a transfer
    /// or members of a collective disagree. A dump of one rank, which contains that rank's peers as numbers, is run with those of
    /// the other ranks: `hir-run --program 0=a.hir,1=b.hir`.
    Mismatch = "W0501", Warning;
    /// If all ranks run this program, they come to a state in which none of them goes on. The message names what is never posted, or
    /// the statements in which ranks wait for each other; the note lists what every rank waits for. A dump of one rank, which
    /// contains that rank's peers as numbers, is run with those of the other ranks: `hir-run --program 0=a.hir,1=b.hir`.
    Deadlock = "W0502", Warning;

    /// A pass pipeline that cannot be read. It is a list such as `canonicalize,remove-dead-code` or `@default`; options
    /// of a pass stand in braces behind its name: `name{option=value,other=value}`.
    BadPipeline = "E0601", Error;
    /// A pass or a pipeline that does not exist. `hir-opt --list-passes` prints those that do.
    UnknownPass = "E0602", Error;
    /// An option that the pass does not have, that is given twice, or a value that it does not take.
    BadOption = "E0603", Error;
    /// A pass changed what the program means: run on the same inputs, it gives another result than before the first
    /// pass, deadlocks, or does not run at all, under the schedule that the note names. The pass is wrong, not the program.
    Miscompiled = "E0604", Error;
    /// The program is no measure of passes: it deadlocks, or its results depend on the schedule or are incomplete, before
    /// any pass has touched it. `hir-run` with the schedule that the note names shows it.
    InvalidReference = "E0605", Error;

    /// A pass cannot rewrite a statement as it was asked to: the program is fine, and this transformation of it is not one
    /// that the pass knows to be right. The message names the statement, the help what would make it possible.
    NotRewritten = "E0610", Error;
    /// A communication that a pipeline for overlap left whole: it is done as `@lower` does it, and nothing is computed
    /// meanwhile. The message says why. `--remarks` prints these, `--remarks=error` makes them fail.
    MissedOverlap = "R0601", Remark;
    /// A communication that a pass put into a loop, where it overlaps with the computation of other iterations.
    /// `--remarks=all` prints these.
    Overlapped = "R0602", Remark;

    /// Two statements access the same elements, one of them writes, and nothing orders the two: no stream waits for the other one, and no
    /// communication lies between them. The result depends on which comes first. The labels show both accesses, with stream and
    /// iteration; the note says why nothing orders them.
    Race = "E0701", Error;
    /// A race with the caller of the program. The caller writes the inputs before the stream that is current at entry begins, and owns
    /// inputs and outputs again once the stream that is current at exit has done its work. A stream that accesses an input without
    /// waiting for the first, or that the second does not wait for, races with the caller; so does a peer that may still read an input
    /// when the program has returned, because the Wait of a send is missing.
    RaceWithCaller = "E0702", Error;
    /// A stream uses the storage of an ALLOCATE without waiting for the stream on which the ALLOCATE was issued. A caching allocator
    /// hands out memory that earlier work of the allocating stream still uses. Or storage is freed, by Deallocate or by the end of the
    /// program, while another stream still uses it: the allocator hands it out again to the stream of its ALLOCATE. Let that stream wait
    /// before the storage is freed.
    StorageRace = "E0703", Error;
    /// Nothing writes some elements of an output. Write them, or allocate the output with `zero_init=true`.
    UnwrittenOutput = "E0704", Error;
    /// A deadlock, found by `--check`: all ranks are blocked. The message names what is never posted, or the
    /// statements in which ranks wait for each other; the note lists what every rank waits for.
    CheckedDeadlock = "E0705", Error;

    /// Ranks use NCCL communicators in orders that contradict each other. NCCL's kernels wait for each other while they occupy a GPU, and a
    /// GPU may not run those of two communicators at the same time: then each rank waits in one of them for the other rank. Post the
    /// communications in the same order on all ranks, or with one team.
    CommunicatorOrder = "E0707", Error;
    /// Two consecutive runs of the program race, as in a captured graph that is replayed: on each rank the next run begins once this rank
    /// has ended the last one, and another rank may still be in that one. Let the rank wait, or put a barrier of all ranks between the
    /// runs. `--check=repeat` looks for these.
    RaceBetweenRuns = "E0706", Error;

    /// A statement reads memory that nothing has written: as an operand of a computation, or as the source of a copy, a send or a
    /// collective. The warning counts the elements that the statement reads, and not the buffer that they lie in. Elements that
    /// were moved or computed from unwritten ones are not reported again where they are read next. On a GPU such an element has
    /// any value. The statement that writes it is missing, or nothing makes the reader wait for it.
    UnwrittenRead = "W0701", Warning;

    /// A redundant Synchronize or Wait: other statements already order everything that it orders. Without it every computation, copy and
    /// communication on every rank still waits for the same earlier ones. Remove this wait only, then check again: it may make another
    /// reported wait necessary.
    ImpliedWait = "R0701", Remark;
    /// An unneeded Synchronize or Wait: no two accesses to the same memory are ordered by it alone. Without it the program has no race, and
    /// more of it may run at the same time. The labels show the first two statements that it alone orders. It may stand there to limit what
    /// runs at the same time, which the checker cannot know. Remove this wait only, then check again: it may make another reported wait
    /// necessary.
    UnneededWait = "R0702", Remark;
    /// Nothing reads what a statement writes: on no rank and in no iteration, before it is overwritten or the program ends; and it is
    /// not an output or an input. Remove the statement; a communication on all its ranks, with its Waits, and then check again, since a
    /// Wait may order other accesses. If a later statement uses the name, put an ALLOCATE in its place. Where nothing reads the zeros of
    /// an ALLOCATE, use `zero_init=false`.
    UnreadWrite = "R0703", Remark;
    /// The long ALLOCATE skips bound names: in a loop it allocates in the first iteration only, and all iterations use one buffer. The
    /// short ALLOCATE, `ALLOCATE(mem_type=global, zero_init=false)`, gives every iteration storage of its own.
    AllocatedOnce = "R0704", Remark;
    /// A tensor is never deallocated, although the program deallocates other tensors. Insert a Deallocate of it after the last statement
    /// that uses it; a Deallocate of every tensor that is bound to the storage, where there are several.
    NotDeallocated = "R0705", Remark;

    /// Indentation was lost and could be recovered: the nesting is certain from SetCurrentStream and Synchronize.
    LossyIndent = "lossy-indent", Warning;
    /// A tensor's logical domain cannot be told from the dump; the most common reading was taken. Write a line in
    /// the `Domains:` section to make it explicit.
    LossyDomains = "lossy-domains", Warning;
    /// Whether CUDA transfers are gets or puts is an option of nvFuser that dumps do not print. The order of the posts
    /// tells: the send first with get, the receive first with put. `%options p2p_protocol=put` makes it explicit.
    LossyProtocol = "lossy-protocol", Warning;
    /// `root=` counted devices of the world until February 2026 and counts members of the team since. Where the other
    /// spellings of the container are new and the team is not `0 1 2 …`, the text could mean either; it is taken as a
    /// member of the team. `%options roots=team` says so.
    LossyRoot = "lossy-root", Warning;
    /// `fmax` and `fmin` were how `max` and `min` were printed until September 2025, and ignore NaNs since. The
    /// container's other spellings do not tell on which side of that day it was printed.
    LossyMax = "lossy-max", Warning;
    /// A fusion that was printed inside the statement that posts it does not list its inputs and outputs: they were
    /// taken in the order of their numbers. A `HostUnit` section lists them.
    LossyUnit = "lossy-unit", Warning;
    /// Until June 2024, `PostOnStream the operation :{ Communication … }` also waited for the communication that it posted.
    /// A container in these words in which nothing waits is read so. `Wait(Communication #)` makes it explicit.
    LossyWait = "lossy-wait", Warning;
    /// A terminal or an editor broke the text inside of a word, and the parts were joined.
    LossyWrap = "lossy-wrap", Warning;
    /// An older dialect was asked for, and it has no words for something that the program says: read back, that text is
    /// not quite this program. The canonical dialect says everything.
    LossyDialect = "lossy-dialect", Warning;
    /// The text holds a bit that means nothing to the language and was dropped.
    LossyText = "lossy-text", Warning;
}

impl Code {
    /// The code printed as `text`, if there is one.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|it| it.text() == text)
    }
}
