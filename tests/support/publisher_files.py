"""Small annotation files in the layouts of publishers, with their columns and quirks, and media named as downloaders do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

YT = "-0SdAVK79lg"  # ids of YouTube may begin with a dash


def write(folder: Path, files: dict[str, Any]) -> Path:
    """Texts, bytes, or values that become JSON, in this folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, (str, bytes)):
            content = json.dumps(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return folder


def media(*names: str) -> dict[str, bytes]:
    """Files that are only looked for, not opened."""
    return dict.fromkeys(names, b"x")


def msrvtt_data(*videos: tuple[str, str, list[str]]) -> dict[str, Any]:
    """The JSON of MSR-VTT: (video, split, captions)."""
    return {
        "info": {"contributor": "Microsoft MSM group", "version": "1.0"},
        "videos": [
            {"category": 9, "url": "https://www.youtube.com/watch?v=x", "video_id": name, "start time": 137.72,
             "end time": 149.44, "split": split, "id": number}
            for number, (name, split, _) in enumerate(videos)
        ],
        "sentences": [
            {"caption": caption, "video_id": name, "sen_id": number}
            for name, _, captions in videos
            for number, caption in enumerate(captions)
        ],
    }  # fmt: skip


MSRVTT = {
    "MSRVTT_JSFUSION_test.csv": 'key,vid_key,video_id,sentence\nret0,msr9770,video9770,"a person, connecting"\n'
    "ret1,msr7020,video7020,a woman creating a fondant baby\n",
    "MSRVTT_train.9k.csv": "video_id\nvideo0\nvideo6513\nvideo7011\n",
    "MSRVTT_train.7k.csv": "video_id\nvideo0\nvideo6513\n",
    "MSRVTT_data.json": msrvtt_data(
        ("video0", "train", ["a car is shown", "a group is dancing"]),
        ("video6513", "validate", ["a man drives"]),
        ("video7011", "test", ["a cat"]),
        ("video7020", "test", ["unused in 1k-a"]),
        ("video9770", "test", ["unused too"]),
    ),
} | media("videos/video0.mp4", "videos/video6513.mp4", "videos/video7011.webm", "TestVideo/video9770.mp4")

FLICKR = "26292851@N04_4253489686_265c3c8051"


def moment(video: str, description: str, number: int) -> dict[str, Any]:
    """An entry of DiDeMo."""
    link = "https://www.flickr.com/video_download.gne?id=4253489686"
    return {"num_segments": 6, "description": description, "dl_link": link, "times": [[4, 4]], "video": video,
            "annotation_id": number}  # fmt: skip


DIDEMO = {
    "train_data.json": [
        moment("1@N_1.mov", "first.", 1),
        moment("2@N_2.avi", "other", 2),
        moment("1@N_1.mov", "second", 3),
    ],
    "test_data.json": [moment(f"{FLICKR}.m4v", "someone kicks the bug.", 4), moment(f"{FLICKR}.m4v", "it flies", 5)],
} | media("1@N_1.mov.mp4", "deeper/2@N_2.avi", f"{FLICKR}.m4v")


def paragraph(*sentences: str) -> dict[str, Any]:
    """A value of ActivityNet Captions."""
    return {"duration": 55.15, "timestamps": [[0.28, 55.15]] * len(sentences), "sentences": list(sentences)}


ACTIVITYNET = {
    "train.json": {"v_bXdq2zI1Ms0": paragraph("A man speaks.", " He moves.")},
    "val_1.json": {"v_uqiMw7tQ1Cc": paragraph("A tutorial.", "  The coach helps.")},
    "val_2.json": {"v_uqiMw7tQ1Cc": paragraph("Weights.")},
} | media("v_bXdq2zI1Ms0.mkv", "videos/uqiMw7tQ1Cc.mp4")

VATEX = {
    "vatex_training_v1.0.json": [
        {"videoID": "Ptf_2VRj-V0_000122_000132", "enCap": ["one", "two"], "chCap": ["一"]},
        {"videoID": "aaaaaaaaaaa_000001_000011", "enCap": ["first"], "chCap": []},
        {"videoID": "aaaaaaaaaaa_000021_000031", "enCap": ["later"], "chCap": []},
    ],
    "vatex_public_test_english_v1.1.json": [{"videoID": "G9zN5TTuGO4_000179_000189", "enCap": ["five"]}],
    "vatex_private_test_without_annotations.json": [{"videoID": "zzzzzzzzzzz_000001_000011"}],
} | media("Ptf_2VRj-V0.mp4", "aaaaaaaaaaa.mp4", "aaaaaaaaaaa_21_31.mp4", "val/G9zN5TTuGO4_000179_000189.mp4")

AUDIOCAPS_ROWS = (
    "audiocap_id,youtube_id,start_time,caption\r\n"
    "103549,7fmOlUlwoNg,20,Constant rattling noise and sharp vibrations\r\n"
    '103542,VjSEIRnLAh8,30,"Food is frying, and a woman talks"\r\n'
    "103550,7fmOlUlwoNg,20,A machine rattles\r\n"
)
AUDIOCAPS = {
    "dataset/train.csv": f"audiocap_id,youtube_id,start_time,caption\n91139,{YT},130,Idling car\n",
    "dataset/test.csv": AUDIOCAPS_ROWS,
    "dataset2.0/test.csv": AUDIOCAPS_ROWS.lower()
    .replace("7fmolulwong", "7fmOlUlwoNg")
    .replace("vjseirnlah8", "VjSEIRnLAh8"),
} | media(f"train/Y{YT}.flac", "test/7fmOlUlwoNg_20_30.wav", "test/103542.wav")

CLOTHO_HEAD = "file_name,caption_1,caption_2,caption_3,caption_4,caption_5\n"
CLOTHO = {
    "clotho_captions_development.csv": CLOTHO_HEAD
    + 'Distorted AM Radio noise.wav,"A muddled noise, of a station",b,c,d,e\n',
    "clotho_captions_validation.csv": CLOTHO_HEAD + "Cafe\u0301 #1.wav,a,b,c,d,e\n",
    "clotho_captions_evaluation.csv": CLOTHO_HEAD + "Santa Motor.wav,a,b,c,d,e\n",
} | media("development/Distorted AM Radio noise.wav", "validation/Caf\u00e9 #1.wav", "evaluation/Santa Motor.wav")

VGGSOUND = {
    "vggsound.csv": '---g-f_I2yQ,1,people marching,test\n--0PQM4-hqg,30,"waterfall, burbling",train\n'
    "glLQrEijrKg,300,playing hammond organ,train\n"
} | media("video/---g-f_I2yQ_000001.mp4", "--0PQM4-hqg_30_40.mp4", "audio/glLQrEijrKg_300000_310000.wav")

UCF101 = {
    **{
        f"ucfTrainTestlist/{name}": text
        for number in "123"
        for name, text in (
            (f"trainlist0{number}.txt", "ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi 1\nYoYo/v_YoYo_g08_c02.avi 101\n"),
            (f"testlist0{number}.txt", "HandstandPushups/v_HandStandPushups_g01_c01.avi\n"),
        )
    },
    "ucfTrainTestlist/classInd.txt": "1 ApplyEyeMakeup\n101 YoYo\n",
} | media(
    "UCF-101/ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi", "v_YoYo_g08_c02.avi",
    "UCF-101/HandstandPushups/v_HandStandPushups_g01_c01.avi",
)  # fmt: skip

AUDIOSET = {
    "balanced_train_segments.csv": "# Segments csv created Sun Mar  5 10:54:31 2017\n"
    "# num_ytids=2, num_segs=2, num_unique_labels=527, num_positive_labels=52882\n"
    "# YTID, start_seconds, end_seconds, positive_labels\n"
    f'--PJHxphWEs, 30.000, 40.000, "/m/09x0r,/t/dd00002"\n{YT}, 0.000, 7.500, "/m/09x0r"\n',
    "eval_segments.csv": '# num_segs=1\n--4gqARaEJE, 0.000, 10.000, "/t/dd00002"\n',
    "class_labels_indices.csv": 'index,mid,display_name\n0,/m/09x0r,"Speech"\n23,/t/dd00002,"Baby cry, infant cry"\n',
} | media("audio/Y--PJHxphWEs.wav", f"audio/{YT}_0_7.5.wav", "eval/--4gqARaEJE_0_10000.mp4")

ESC50 = {
    "meta/esc50.csv": "filename,fold,target,category,esc10,src_file,take\n"
    "1-100032-A-0.wav,1,0,dog,True,100032,A\n5-103415-A-14.wav,5,14,chirping_birds,False,103415,A\n"
} | media("audio/1-100032-A-0.wav", "audio/5-103415-A-14.wav")

VAST_CLIP = {
    "clip_id": "5K6l0PdyTCM.23", "clip_span": ["00:00:57.799", "00:01:06.200"], "url": "https://www.youtube.com/watch?v=x",
    "vision_cap": ["a", "b"], "audio_cap": ["c"], "subtitle": "Put the dough in.", "vast_cap": "everything",
}  # fmt: skip
VAST = {"vast150k.json": [VAST_CLIP]} | media("videos/5K6l0PdyTCM.23.mp4")
