//! The codes of all diagnostics, with their severity, the check that finds them, and the paragraphs
//! and examples that `--explain` prints.
//!
//! The numbers are stable: E01xx parsing, E02xx names and shapes, E03xx verification, E04xx planning, E05xx
//! matching communications across ranks, E06xx pass pipelines, R01xx edits, W01xx comments for hir, R06xx
//! remarks of passes, E07xx checking, R07xx remarks of the checker, W07xx execution, E08xx and W08xx dumps of
//! the flight recorder, E09xx StableHLO modules,
//! E10xx certificates. A `lossy-…` warning reports information that a dump does not
//! contain.

crate::named_enum! {
    /// The severity of a diagnostic.
    /// The names are the words for it in messages.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Severity {
        /// The program is rejected.
        Error = "error",
        /// The program is accepted, but it may not mean what the user expects.
        Warning = "warning",
        /// Information about one statement: a pass reports what it did or did not do, or the checker reports what
        /// the program does not need.
        Remark = "remark",
    }
}

/// What finds a diagnostic that a comment can allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// `--check=race`.
    Race,
    /// `--check=memory`.
    Memory,
    /// Every check.
    Deadlock,
    /// `--check=repeat`.
    Repeat,
    /// `--check=comm`.
    Communicators,
    /// `--check=capture`.
    Capture,
    /// The check for what the program does not need.
    Excess,
    /// Reading the text: a dump does not contain something.
    Reading,
}

macro_rules! codes {
    (@check) => { None };
    (@check $check:ident) => { Some(Check::$check) };
    ($($(#[doc = $doc:literal])+ $code:ident = $text:literal, $severity:ident $(, $check:ident)?;)*) => {
        /// A diagnostic's code.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Code { $($(#[doc = $doc])+ $code,)* }

        impl Code {
            /// All codes, in order of declaration.
            pub const ALL: &'static [Code] = &[$(Code::$code),*];

            /// Returns the code as it is printed, such as `E0401`.
            pub const fn text(self) -> &'static str {
                match self { $(Code::$code => $text,)* }
            }

            /// Returns the severity of the code.
            pub const fn severity(self) -> Severity {
                match self { $(Code::$code => Severity::$severity,)* }
            }

            /// Returns what finds the code; `None` if it is not a finding of the checker or of a reader of dumps.
            pub const fn check(self) -> Option<Check> {
                match self { $(Code::$code => codes!(@check $($check)?),)* }
            }

            /// Returns the paragraph that `--explain` prints.
            pub const fn explanation(self) -> &'static str {
                match self { $(Code::$code => concat!($($doc, "\n"),+),)* }
            }

            /// Returns files and a command that reports the code, and the edit: a line behind `- ` is replaced by those behind `+ `.
            /// Empty if no input gives the code.
            pub const fn example(self) -> &'static str {
                match self { $(Code::$code => include_str!(concat!("examples/", $text, ".txt")),)* }
            }

            /// Returns the paragraph, with the example and its edit.
            pub fn explained(self) -> String {
                let lines: Vec<&str> = self.explanation().lines().map(str::trim).collect();
                let example = match self.example() {
                    "" => String::new(),
                    it => format!("\nExample; the edit replaces the lines behind `-` by those behind `+`:\n\n{it}"),
                };
                format!("{}: {}\n{example}", self.text(), lines.join(" ").trim())
            }
        }
    };
}

codes! {
    /// A character that does not begin any token of the language. Outside comments, dumps contain only
    /// printable ASCII. The usual cause is that copying and pasting replaced quotes or blanks.
    BadToken = "E0101", Error;
    /// The text does not follow the grammar. The label lists what the parser expected at this position.
    Syntax = "E0102", Error;
    /// The text contains no `%HostIrContainer`. It must contain at least one container; other log output
    /// around it is ignored.
    NoContainer = "E0103", Error;
    /// The text of a tensor cannot be parsed. The expected form is
    /// `T<number>_<memory>[_<type>][<axes>] (DeviceMesh{…})`.
    BadTensor = "E0104", Error;
    /// The text ends inside a container, a statement or a bracket: part of the dump is missing.
    Truncated = "E0105", Error;
    /// A loop or branch has no indented body, so the end of its body cannot be determined. Indentation is the
    /// only block structure of the language; paste the text with its indentation.
    LostIndentation = "E0106", Error;
    /// A number does not fit into 64 bits.
    BadNumber = "E0107", Error;
    /// An edit that `--fix` makes in the text. Formats for programs report each of them, with the positions of the text before.
    Edited = "R0101", Remark;
    /// A comment `// hir: allow(…)` has no effect. Either nothing of the code is found in the statement that the comment applies to, or no
    /// diagnostic has the code, or it is the code of an error that rejects a program. `// hir: allow(R0703)` on a line of its own applies to
    /// the statement that begins on the next line, and behind a statement to its line.
    UnusedAllow = "W0101", Warning;

    /// The name of a statement or of a function of scalars is not an operator of the op table. `hir-opt --list-ops` prints the table.
    UnknownOp = "E0201", Error;
    /// The number or kind of the operands differs from the operator's definition in the op table.
    BadOperands = "E0202", Error;
    /// An attribute is missing, or the operator does not have an attribute of this name or kind.
    BadAttribute = "E0203", Error;
    /// A statement posts a HostUnit that no section of the text defines.
    UnknownUnit = "E0204", Error;
    /// A line of `Domains:` does not match its tensor: it names an unknown tensor or axis, or its transforms
    /// do not lead from the logical to the loop domain, or they give an axis another extent. The code also
    /// reports two different tensors with the same number.
    BadDomain = "E0205", Error;
    /// Scalar definitions depend on each other in a cycle.
    CircularDefinition = "E0206", Error;
    /// A short name such as `T3` refers to the tensor with this number that the text spells in full before:
    /// in a `%tensor` line before the container, in its header, or in an earlier statement. Either there is
    /// none, or several tensors have the number. A HostUnit has tensors of its own.
    UnknownTensor = "E0207", Error;
    /// A HostUnit, the domain of a tensor, or a key of `%options` is defined twice, a scalar has two
    /// different definitions, or two axes of one tensor have the same number. Two dumps may have been pasted
    /// together. Or a statement gives a value to `rank`, `deviceIdx.x` or `numberOfStreams`.
    DefinedTwice = "E0208", Error;
    /// A container and the fusions of its log do not fit together: a tensor of the container has other axes in the
    /// fusion, several fusions that differ fit the container, or a group contradicts itself or the complete fusion. Pass the right
    /// fusion with `--fusions FILE`.
    FusionMismatch = "E0209", Error;
    /// No fusion in a file that `--fusions` names fits a container of the text, so that the file has no effect: it is no log of
    /// `NVFUSER_DUMP=segmented_fusion`, or that of another program.
    UnusedFusions = "W0209", Warning;

    /// A tensor is read before any statement allocates or defines it.
    UndefinedTensor = "E0301", Error;
    /// A named stream is used before GetCurrentStream captures it.
    UndefinedStream = "E0302", Error;
    /// The shapes of the operands and the result violate the operator's type rule.
    ShapeMismatch = "E0303", Error;
    /// The element types of the operands and the result violate the operator's type rule.
    TypeMismatch = "E0304", Error;
    /// A Wait names a communication that is not posted before it in the same scope.
    UnknownWork = "E0305", Error;
    /// A team is empty, contains a rank twice, or differs from the team that the meshes of the tensors
    /// require.
    BadTeam = "E0306", Error;
    /// A tensor has more than one stream axis, or a device axis whose extent differs from the extent of the
    /// mesh.
    BadSharding = "E0307", Error;
    /// StartCoalescing and EndCoalescing are not paired, or a statement between them is not a
    /// P2PCommunication.
    BadCoalescing = "E0308", Error;
    /// The predicate of a branch is not a boolean.
    BadPredicate = "E0309", Error;
    /// A communication whose type requires a root has none, or a communication whose type has no root
    /// specifies one.
    BadRoot = "E0310", Error;
    /// A tensor is used after Deallocate released its name.
    UseAfterDeallocate = "E0312", Error;
    /// A WHILE is not the first statement of a loop `FOR i from a to b:`, its condition is not one boolean, or the loop has an effect that
    /// depends on the number of its iterations and is no value of a tensor: a name that the body binds is used behind the loop, a name that
    /// is bound before it denotes other storage behind it, or the body changes, captures or waits for a stream. Bind names before the loop, and
    /// write their values in its body.
    BadLoopCondition = "E0313", Error;
    /// An ALLOCATE of a name that is already bound has no effect: the long form of ALLOCATE skips bound
    /// names.
    RedundantAllocate = "W0301", Warning;
    /// A Set.Permute moves nothing. `dims` has, for each axis of the result, the number of the operand's axis, from 0:
    /// `dims = {1, 0}` exchanges two axes, and `dims = {0, 1}` copies. In a text without `dims`, as nvFuser prints it, the axes
    /// of the result are listed in its own order and numbered in the order of the operand: `[iS3{4}, iS2{8}]` exchanges the
    /// axes of an operand `[iS0{8}, iS1{4}]`.
    IdentityPermute = "W0302", Warning;

    /// A scalar has no value: the dump uses it but does not define it. Define it with `--set name=value`,
    /// where the value is a number or an expression of `rank` and loop indices, or add its definition to the
    /// `Index definitions:` section. The last line of the report lists all missing scalars with suitable
    /// values.
    UnboundSymbol = "E0401", Error;
    /// An extent, index, peer or team is invalid on this rank: out of range, negative, or not divisible.
    BadIndex = "E0402", Error;
    /// The program uses an operator that the planner cannot lower, a backend, algorithm or protocol that no
    /// executor implements, or a kernel whose code the text does not contain. The program can be read, verified
    /// and printed, but not run.
    Unsupported = "E0403", Error;
    /// The log has fusions, but not the whole group that a LaunchKernel executes: it is cut off, or missing. The program can be
    /// checked, and fails with E0403 if it runs. Copy the whole log of `NVFUSER_DUMP=host_ir,segmented_fusion`, or name the file
    /// of the fusions with `--fusions FILE`.
    KernelWithoutBody = "W0403", Warning;
    /// The program unrolls to more instructions than the limit.
    TooLong = "E0404", Error;
    /// A resharding operator is inside a branch or loop whose predicate or index depends on the rank, so not
    /// all ranks would take part in the communication.
    DivergentReshard = "E0405", Error;
    /// A transfer of the CUDA backend has no preceding ShareMemHandles with the same number, buffer and peer.
    NotShared = "E0406", Error;
    /// A mesh of the program contains a rank that is not less than the number of ranks.
    WorldTooSmall = "E0407", Error;
    /// The operands of a statement have views of different shapes on this rank.
    RuntimeShape = "E0408", Error;
    /// A tensor, the number of ranks, or the unrolled program exceeds a limit: 2^40 elements per tensor,
    /// 65536 ranks (`--max-ranks=N` raises it), a million instructions on a rank, 16 million on all ranks. The usual cause is a
    /// mistyped number, or a `--set` that defines the wrong symbol.
    TooLarge = "E0409", Error;
    /// The plans or the simulated ranks need more memory than `--memory-limit` allows, 16 GiB by default, or the
    /// simulated runs compute or communicate more elements than `--max-work` allows: 4 billion by default in
    /// hir-run, 1 billion in other tools. Or the plans of all ranks have more than 6 million instructions, or than `--max-work` million.
    /// Nothing is wrong with the program: bind smaller extents, or raise the limit. The exit code is 6.
    OverBudget = "E0410", Error;
    /// A rank waits for a communication that it has not posted, or not again since its last Wait for it. nvFuser's
    /// interpreter ends a program there; a Wait for a transfer of the CUDA backend reads a semaphore instead, and waits
    /// for nothing there. A rank that executes the statement of a communication without being a member
    /// of its team may wait for it once, as the members do.
    NotPosted = "E0411", Error;
    /// A statement writes several values to one element: its result is an `expand` of another tensor, or a view of one, and has no
    /// storage of its own. PyTorch, whose tensors nvFuser's interpreter writes to, refuses such writes. An `expand` that is executed again
    /// writes nothing: its result is another view.
    RepeatedElements = "E0412", Error;
    /// The condition of a WHILE still holds when its loop ends: the end of the index is a limit, and a loop never ends silently there. Raise
    /// the limit, or let the condition become false, as by a counter in it.
    LoopLimit = "E0413", Error;
    /// The two sides of a transfer, or the members of a collective, disagree on size, type or root; or a rank
    /// would run the program of another rank (`%options rank=`).
    Disagreement = "E0501", Error;
    /// The static form of E0501: if all ranks run this program, the two sides of a transfer or the members of
    /// a collective disagree. If the dump was taken on one rank and contains its peers as numbers, run it
    /// together with the dumps of the other ranks: `hir-run --program 0=a.hir,1=b.hir`.
    Mismatch = "W0501", Warning;
    /// If all ranks run this program, they deadlock: they reach a state in which no rank can make progress.
    /// The message names the communication that is never posted, or the statements in which ranks wait for
    /// each other; the note lists what each rank waits for. If the dump was taken on one rank and contains
    /// its peers as numbers, run it together with the dumps of the other ranks:
    /// `hir-run --program 0=a.hir,1=b.hir`.
    Deadlock = "W0502", Warning;

    /// A pass pipeline cannot be parsed. A pipeline is a list such as `canonicalize,remove-dead-code` or
    /// `@default`. The options of a pass follow its name in braces: `name{option=value,other=value}`; those of a
    /// pass in a pipeline begin with its name: `@pipeline{name.option=value}`.
    BadPipeline = "E0601", Error;
    /// A pass or pipeline does not exist. `hir-opt --list-passes` prints all passes and pipelines.
    UnknownPass = "E0602", Error;
    /// A pass does not have this option, the option is given twice, or its value is invalid, possibly only for
    /// this program; or an option of a pipeline does not name one of its passes. The position lies in the text of
    /// `--passes`, and the exit code is 2.
    BadOption = "E0603", Error;
    /// A pass changed the meaning of the program. On the same inputs, under the schedule that the note names,
    /// the program gives another result than before the first pass, deadlocks, or fails to run. This is a bug
    /// of the pass, not of the program.
    Miscompiled = "E0604", Error;
    /// The program cannot serve as the reference for a check of passes: before any pass has changed it, it
    /// deadlocks, or its results are incomplete or depend on the schedule. To reproduce this, run `hir-run`
    /// with the schedule that the note names.
    InvalidReference = "E0605", Error;

    /// A pass cannot apply the requested rewrite to a statement. The program is valid, but the pass cannot
    /// show that the rewrite is correct for it. The message names the statement; the help says what would
    /// make the rewrite possible.
    NotRewritten = "E0610", Error;
    /// A pipeline for overlap did not overlap a communication with computation: the communication is lowered
    /// as `@lower` lowers it. The message gives the reason. `--remarks` prints these remarks;
    /// `--remarks=error` treats them as errors.
    MissedOverlap = "R0601", Remark;
    /// A pass moved a communication into a loop, where it overlaps with the computation of other iterations.
    /// `--remarks=all` prints these remarks.
    Overlapped = "R0602", Remark;
    /// A pass changed nothing: the program has nothing that the pass rewrites. The message gives the reason.
    /// `--remarks` prints these remarks; they are no errors for `--remarks=error`.
    NoEffect = "R0603", Remark;
    /// A pass says what it did to a statement, or why it left the statement as it is. Passes outside of hir use this code, too.
    /// `--remarks=all` prints these remarks.
    PassRemark = "R0604", Remark;
    /// `@overlap`, or `fastest`, kept the result of another pipeline than the first one, because it is faster by the estimates of the machine.
    /// `@overlap{}` overlaps all the same. The remark is always printed; `--remarks=error` treats it as an error.
    OtherKept = "R0605", Remark;

    /// A data race: two statements access the same elements, at least one of them writes, and nothing orders
    /// the two accesses. Neither stream waits for the other, and no communication orders them. The result
    /// depends on which access is first. The labels show both accesses with stream and iteration; the note
    /// says why they are not ordered.
    Race = "E0701", Error, Race;
    /// A data race with the caller of the program. The caller writes the inputs before the work of the stream
    /// that is current at entry begins, and may access inputs and outputs again once the stream that is
    /// current at exit has finished its work. A stream races with the caller if it accesses an input without
    /// waiting for the stream at entry, or if the stream at exit does not wait for it. A peer races with the
    /// caller if it may still read an input when the program has returned, because the Wait for a send is
    /// missing.
    RaceWithCaller = "E0702", Error, Race;
    /// A stream uses the storage of an ALLOCATE without waiting for the stream on which the ALLOCATE was
    /// issued. A caching allocator may return memory that earlier work of the allocating stream still uses.
    /// The code also reports storage that Deallocate or the end of the program frees while something
    /// still uses it: the allocator may give it to later work on the allocating stream. Make the allocating
    /// stream wait before the storage is freed, or free it later. A Deallocate unmaps symmetric memory at once, so the host has to have
    /// waited for all uses (`Synchronize(host)`). With `--storage=cuda-async` and `pytorch-cuda-async`, the allocation
    /// (`cudaMallocAsync`) and the free (`cudaFreeAsync`) are work of the allocating stream: every use on another stream has to follow
    /// the one, and the other has to follow every use, whether or not another tensor gets the storage.
    StorageRace = "E0703", Error, Race;
    /// Some elements of an output are never written, or are computed from elements that nothing writes. Write
    /// them, or allocate them with `zero_init=true`.
    UnwrittenOutput = "E0704", Error, Memory;
    /// A deadlock, found by `--check`: all ranks are blocked. The message names the communication that is
    /// never posted, or the statements in which ranks wait for each other; the note lists what each rank
    /// waits for. Or two ranks make calls of one team in different orders, so that each call gets the data of
    /// another one.
    CheckedDeadlock = "E0705", Error, Deadlock;

    /// Ranks use communicators in conflicting orders. A kernel of NCCL, or of a collective over peer memory, occupies its GPU while it waits for
    /// its peers, and a GPU may not run kernels of two communicators at the same time. Two ranks can then
    /// deadlock, each in a kernel of another communicator. Post the communications in the same order on all
    /// ranks, or use one team for all of them. The kernels may be of different runs (`--check=repeat`) or programs (`--with`): let the stream of the
    /// later one wait for the earlier one.
    CommunicatorOrder = "E0707", Error, Communicators;
    /// A capture into a CUDA graph does not record the work of a stream, or ends with an error. A stream takes part once it has waited
    /// for one that takes part, beginning with the stream that is current at entry. Its earlier work is not in the graph; a stream that
    /// takes part must not wait for one that does not; and all have to be joined at the end. With
    /// `--storage=cuda-async`, a graph is not launched again while memory that it allocates is not freed. `--check=capture` looks for this.
    NotCaptured = "E0708", Error, Capture;
    /// A transfer over peer memory is posted again before it has ended. As nvFuser implements such transfers, there is one semaphore
    /// for each peer, buffer and P2PCommunication, and each post writes the same value to it. The value of one of the two posts is
    /// lost: a rank waits forever, or copies before the data is there. Wait for the first transfer before the second one, also in
    /// the next run if the program is replayed (`--check=repeat`). hir's executors count transfers, so `--check-model=hir` does not report this.
    SemaphoreInUse = "E0709", Error, Race;
    /// A data race between two consecutive runs of the program, such as replays of a captured graph. On each
    /// rank the next run begins when that rank has finished the previous run, while other ranks may still
    /// execute the previous run. Make the rank wait, or put a barrier of all ranks between the runs. On one rank, a stream of the next run may
    /// use elements, or get storage, that another stream of the previous run still uses: let it wait for that stream before.
    /// `--check=repeat` looks for these races.
    RaceBetweenRuns = "E0706", Error, Repeat;

    /// A statement reads elements that were never written, as an operand of a computation or as the source of
    /// a copy, a send or a collective. The warning counts the elements that the statement reads, not the
    /// elements of the buffer. Elements that were copied or computed from unwritten elements are not reported
    /// again when they are read. On a GPU such an element has an arbitrary value. Either the statement that
    /// writes the elements is missing, or the reader does not wait for it.
    UnwrittenRead = "W0701", Warning, Memory;
    /// A write to the result of a copy changes the operand. A statement that copies a tensor, or takes a slice or
    /// another layout of it, makes its unbound result a view, as nvFuser does, and a bound result is written. So a
    /// statement that writes to the result of `Set` changes an input, or, in a loop, the first iteration binds the
    /// name to a part of a tensor, and later iterations copy into this part. To keep it, allocate the name before.
    OverwrittenView = "W0702", Warning, Memory;

    /// More streams of a rank wait for other ranks than a GPU has hardware queues by default. Streams that share a queue execute in
    /// issue order, so a stream that waits can block the stream whose work another rank waits for. Set `CUDA_DEVICE_MAX_CONNECTIONS`
    /// before CUDA starts; 32 is the maximum.
    FewQueues = "W0703", Warning, Race;

    /// The members of a process group do not make the same collective calls: a rank leaves out a call, makes one more, makes them in another
    /// order, or makes another one. Communicators pair calls by their position, so all later ones meet other calls. `hir hang` names the first
    /// position that differs and, if most of the members, the earlier records or other groups decide it, the rank that diverged.
    HangDiverged = "E0801", Error;
    /// The ranks make the same call with different numbers of elements or element types, the splits of an all-to-all do not match, or
    /// a send and its receive differ.
    HangSizes = "E0802", Error;
    /// Ranks wait for each other: each is in a call that another one reaches only after its own. The notes list each rank with what it waits for.
    /// Often two groups are used in another order, or a call of one group is left out.
    HangCycle = "E0803", Error;
    /// A send has no receive, a receive has no send, or a rank names another peer than the same line does on all other ranks.
    HangPeer = "E0804", Error;
    /// Ranks created a process group of one name with different members, and wait in it.
    HangMembership = "E0805", Error;
    /// Ranks wait for a rank that has no dump, or one that cannot be read. A process that ends or is killed before the time-out writes none.
    HangNoDump = "E0806", Error;
    /// The dumps show a hang, and the ring buffer has overwritten the records that would show its cause. `TORCH_FR_BUFFER_SIZE`
    /// is the number of records that are kept.
    HangUndecided = "E0807", Error;
    /// All members made the call and all that the records hold of it agrees, but it hangs: only some members completed a call that has a root or
    /// splits, or the watchdog gave the call up. Records do not hold roots, reduce operators, splits and tags; these have to be compared in the program.
    HangUnknown = "E0808", Error;
    /// Ranks wait in a call that one of them has not reached: it is late, stopped or dead, or the call is one too many. All calls agree so far, so that this need not be a hang; it is one,
    /// and the exit code is 4, if the watchdog gave the call up. Also a receive from any rank to which no rank sends.
    RankLate = "W0801", Warning;
    /// All members made the call, and some or all of them have not completed it: it is in flight, or the device or the network is stuck. Also a
    /// call of which the ring buffer has lost the records of other members.
    CallInFlight = "W0802", Warning;
    /// Different calls were paired, and completed. NCCL does not compare what ranks call; the results are wrong.
    HangPairedCalls = "W0803", Warning;
    /// A file with the name of a dump cannot be read as one. Its rank counts as one without a dump.
    UnreadableDump = "W0804", Warning;

    /// `hir certify`: an output of the lowered program is not that of the original. The programs were evaluated on the same random elements
    /// of a prime field, so there are inputs for which the results differ, unless the difference is in what the model leaves out: identities
    /// of operators that it treats as unknown functions, such as `exp(a + b) = exp(a) · exp(b)`, and of conversions, which do not round.
    ProgramsDiffer = "E1001", Error;
    /// `hir certify` does not certify a statement: it does not know what the operator computes, a scalar has no value, ranks hold different
    /// values of what should be one tensor, or the program is too large. Nothing is certified then.
    NotCertifiable = "E1002", Error;
    /// `hir certify`: the lowered program computes what its original computes for inputs within these bounds. Beyond them, an operator may give
    /// an infinity or a NaN that only one of the programs drops. The bounds suffice; others may suffice, too.
    CertifiedOnRange = "W1001", Warning;

    /// A redundant Synchronize or Wait: other statements already enforce all the ordering that it enforces.
    /// Without it, every computation, copy and communication on every rank still waits for the same earlier
    /// ones. Remove only this statement, then check again: its removal may make another reported wait
    /// necessary.
    ImpliedWait = "R0701", Remark, Excess;
    /// An unneeded Synchronize or Wait: it does not order any two accesses to the same memory that would
    /// otherwise be unordered. Without it the program has no race, and more work can run concurrently. The
    /// labels show the first two statements that only this wait orders. The wait may be intended to limit
    /// concurrency, which the checker cannot know. Remove only this statement, then check again: its removal
    /// may make another reported wait necessary.
    UnneededWait = "R0702", Remark, Excess;
    /// The elements that a statement writes are never read: on every rank and in every iteration they are
    /// overwritten first, or the program ends, and they are not part of an input or output. Remove the
    /// statement. Remove a communication on all its ranks, together with its Waits, and then check again,
    /// because a Wait may order other accesses. If a later statement uses the name, replace the statement by
    /// an ALLOCATE. If only the zeros of an ALLOCATE are never read, use `zero_init=false`.
    UnreadWrite = "R0703", Remark, Excess;
    /// The long form of ALLOCATE skips bound names: in a loop it allocates in the first iteration only, and
    /// all iterations share one buffer. The short form, `ALLOCATE(mem_type=global, zero_init=false)`,
    /// allocates new storage in each iteration.
    AllocatedOnce = "R0704", Remark, Excess;
    /// A tensor is never deallocated, although the program deallocates other tensors. Insert a Deallocate
    /// after the last statement that uses the tensor. If several tensors are bound to the same storage,
    /// deallocate each of them.
    NotDeallocated = "R0705", Remark, Excess;

    /// hir reads no such operation of a StableHLO module, or not this form of it: Host IR has no statement that stands for
    /// it, or nobody has written the import yet. `docs/jax.md` lists the operators that are read. No operation is skipped.
    UnsupportedOperation = "E0901", Error;
    /// A StableHLO module contradicts itself: a value, function or mesh is used that it does not define, or types do not
    /// follow from each other. JAX writes no such module; the text was edited or damaged.
    BadModule = "E0902", Error;
    /// A StableHLO module unrolls to too many operations: hir imports every iteration of a loop with a constant number of iterations, and
    /// every call, in place.
    UnboundedLoop = "E0903", Error;
    /// hir cannot express a mesh or a sharding of a StableHLO module: parts of axes, extents that the devices do not divide
    /// evenly, devices in an order of their own, more than three axes with several devices, or shardings older than Shardy.
    UnsupportedSharding = "E0904", Error;

    /// The indentation of the text was lost and has been reconstructed: the SetCurrentStream and Synchronize
    /// statements determine the nesting uniquely. Or a line is indented less than the first line of its block,
    /// but more than the loop or branch around it: then it is read as a part of the block. Or a statement begins on
    /// the line of another one: then it is read as a part of the same block, or of the loop or branch that begins there.
    LossyIndent = "lossy-indent", Warning, Reading;
    /// The dump does not determine the logical domain of a tensor, so the most common interpretation was
    /// used. Add a line to the `Domains:` section to make the domain explicit.
    LossyDomains = "lossy-domains", Warning, Reading;
    /// Dumps do not contain the nvFuser option that selects get or put for CUDA transfers. The protocol was
    /// inferred from the order of the posts: with get, the send is posted first; with put, the receive is
    /// posted first. Use `%options p2p_protocol=put` or `=get` to make it explicit.
    LossyProtocol = "lossy-protocol", Warning, Reading;
    /// The meaning of `root=` is ambiguous. Until February 2026 it was a world rank; since then it is an
    /// index into the team. The other spellings of this container are new and its team is not `0 1 2 …`, so
    /// both are possible; it was read as an index into the team. `%options roots=team` makes this explicit.
    LossyRoot = "lossy-root", Warning, Reading;
    /// The meaning of `fmax` and `fmin` is ambiguous. Until September 2025 dumps printed `max` and `min`,
    /// which propagate NaNs, by these names; since then `fmax` and `fmin` ignore NaNs. The other spellings of
    /// the container do not determine which version printed it.
    LossyMax = "lossy-max", Warning, Reading;
    /// The text does not define some scalars, and `--assume` has given them the values that the report about them would
    /// propose. The program may have run with others. Set them with `--set`, or keep them with `-o`.
    LossyScalar = "lossy-scalar", Warning, Reading;
    /// nvFuser does not print the operator of a reducing communication: a sum, a maximum and the others look alike. A sum
    /// was assumed, unless the log has the fusion of the container, which states the operator. `red_op=MAX` makes it
    /// explicit.
    LossyRedOp = "lossy-red-op", Warning, Reading;
    /// A fusion that is printed inside the statement that posts it does not list its inputs and outputs. They
    /// were ordered by their numbers. A `HostUnit` section lists them explicitly.
    LossyUnit = "lossy-unit", Warning, Reading;
    /// Until June 2024, `PostOnStream the operation :{ Communication … }` also waited for the communication
    /// that it posted. A container with this spelling and without any Wait is read in this way.
    /// `Wait(Communication #)` makes the wait explicit.
    LossyWait = "lossy-wait", Warning, Reading;
    /// The text contains no code for the kernel of a LaunchKernel, but the statements of its fusion, printed by
    /// `NVFUSER_DUMP=host_ir,segmented_fusion`. hir executes these statements. nvFuser's kernel computes the same
    /// function, but may add and round in another order.
    LossyKernel = "lossy-kernel", Warning, Reading;
    /// A terminal or an editor broke a line inside a word. The parts were joined.
    LossyWrap = "lossy-wrap", Warning, Reading;
    /// The requested older dialect cannot express a construct of the program, so reading the printed text
    /// back gives a different program. The canonical dialect can express every program.
    LossyDialect = "lossy-dialect", Warning, Reading;
    /// A part of the text was ignored: it has no meaning in the language, or it is a line of a program outside
    /// of its container.
    LossyText = "lossy-text", Warning, Reading;
}

impl Code {
    /// Returns whether the verifier or the resolver reports the code: the program is invalid.
    pub fn is_about_program(self) -> bool {
        ["E02", "E03"].iter().any(|it| self.text().starts_with(it))
    }

    /// Returns the code that is printed as `text`, or `None` if there is no such code.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|it| it.text() == text)
    }
}
