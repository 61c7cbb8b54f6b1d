"""What the paper prints, and what is said below the table of `closer-recalibration`."""

from statistics import fmean

from fl_dpbayes.run.reproduce.closer_recalibration_settings import (
    DP,
    DP_PS,
    DP_TS,
    EPSILONS,
    GLOBAL,
    KNOLLE,
    MEAN,
    NON_PRIVATE_TS,
    PROBE,
    task_setting,
)

# Tables 1 and 2, epsilon 8: CIFAR-10, SUN397, Food101, MNLI, QNLI, QQP, SST-2; table 7, epsilon 3: the first three.
_ECE: dict[float, dict[str, tuple[float, ...]]] = {
    8.0: {
        DP: (0.0903, 0.1302, 0.154, 0.166, 0.149, 0.13, 0.105),
        KNOLLE: (0.1331, 0.1952, 0.2416, 0.2625, 0.2138, 0.2009, 0.1742),
        GLOBAL: (0.0804, 0.1125, 0.1017, 0.1667, 0.1491, 0.1296, 0.1047),
        DP_PS: (0.012, 0.104, 0.0554, 0.0487, 0.0305, 0.0672, 0.0201),
        DP_TS: (0.0221, 0.0763, 0.054, 0.0849, 0.0915, 0.0635, 0.0665),
        NON_PRIVATE_TS: (0.0222, 0.0764, 0.0539, 0.0849, 0.0915, 0.0635, 0.0665),
    },
    3.0: {
        DP: (0.0916, 0.2806, 0.2464),
        KNOLLE: (0.1595, 0.3295, 0.2834),
        GLOBAL: (0.0782, 0.285, 0.2276),
        DP_PS: (0.0109, 0.2826, 0.0626),
        DP_TS: (0.0217, 0.0183, 0.0601),
        NON_PRIVATE_TS: (0.0218, 0.019, 0.0598),
    },
}
# The abstract's number: the mean of all ratios of both recalibrations at epsilon 8, 2.3 for one and 3.9 for the other.
RATIO = 3.1
PAPER = {
    (method, task_setting(PROBE, MEAN, epsilon)): {
        "ratio": fmean(base / one for base, one in zip(_ECE[epsilon][DP], errors, strict=True))
    }
    for epsilon in EPSILONS
    for method, errors in _ECE[epsilon].items()
}
PAPER_EPSILON = {key: epsilon for epsilon in EPSILONS for key in PAPER if key[1].endswith(f"eps {epsilon:g}")}
NOTES = (
    "The paper's tasks are others, so only the mean ratio of ECE is set beside ours: its 3.1 is the mean over both "
    "recalibrations at epsilon 8, 2.3 by temperature and 3.9 by Platt scaling. The mean row of DP-TS is to be held "
    "against it. A ratio is limited by what a calibrated predictor shows at that n (column `if calibrated`): where a "
    "recalibrated row has reached it, no method can show more.",
    "DP, DP-SGLD, global clipping and the row chosen by NLL are trained on all records, as in the paper. DP-TS, DP-PS "
    "and DP + non-private TS come from the chain `DP on 90 %`; its other tenth was fitted to at the same epsilon, and "
    "the cost is the larger of the two (proposition A.1). Their accuracy cost is that against `DP`. DP + non-private "
    "TS protects nobody in that tenth, so it states no epsilon.",
    "Settings were chosen on validation records at epsilon 8 and mostly kept at 3: DP and global clipping by accuracy, "
    "Langevin and `DP chosen by NLL` by negative log-likelihood. How overconfident DP is depends on that choice: "
    "on validation records of MNIST the probe at clip norm 0.1 has the better accuracy (.975) and a best temperature "
    "of 1.9, at clip norm 1 it has .974 and 1.3. Part of what recalibration gains a choice by likelihood gains too, "
    "without a tenth of the records.",
    "Does Langevin sampling pay against DP-SGD with a DP temperature? Before recalibration it does, other than in the "
    "paper: on probes it lowers ECE 1.7-fold, but a choice of DP-SGD by likelihood does as much, at higher accuracy. "
    "After it, not on MNIST: at epsilon 8 and 3, ECE .0037 and .0040 at accuracy .969 and .968 against .0032 and .0029 "
    "at .979. On PneumoniaMNIST the two are level: .021 and .018 at .938 and .940 against .020 and .024 at .949 and "
    ".941, where 371 records at epsilon 3 fix a temperature badly. So they are on shifted sites: mean ECE .022 and "
    ".024 against .021 and .023.",
    "`DP-SGLD` is the paper's: temperature coupling, decaying steps, pre-noise .046, which costs a draw per record, "
    "weight and step, so its chains are short and only probes have it; its temperature is the one that meets epsilon, "
    "not 6.08. `DP-SGLD average` has no pre-noise, longer chains, 90 % of the records and a posterior average of 40.",
    "Shifted sites: detector noise, blur, contrast and rotation at severity 3, for PneumoniaMNIST also a lower "
    "prevalence and the official test set, whose prevalence differs; values are means over sites, each site's are in "
    "the cells' files. PneumoniaMNIST's in-domain records are 1,000 dealt from its training part.",
)
